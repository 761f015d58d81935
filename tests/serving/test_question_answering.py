"""Question answering exports give the answers that fine-tuning's own decoding gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference.batches import numpy_batch
from support.tiny_run import WORDS, as_bytes, write_fine_tuned_run

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.answers import best_texts, decode
from albert_tf.finetuning.tasks.squad.read import Question, SquadData
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.finetuning.tasks.squad.task import SquadTask
from albert_tf.keras_api.exports import export_saved_model
from albert_tf.serving.settings import ExportSettings

SIZES = {"max_seq_length": 24, "max_query_length": 8, "doc_stride": 6, "max_answer_length": 5}
LONG = " ".join(WORDS[(7 * i) % len(WORDS)] for i in range(30))
CONTEXTS = [
  "the sky is blue",
  LONG,
  "",
  "The  Sky, is BLUE zebra\tgrass.",
  "the the the the the the",
  "\u00a0birds sing",
]
QUESTIONS = [
  "what is blue?",
  "the long grass grows under old trees all day long",
  "",
  "sky",
  "the",
  "x",
]


@pytest.fixture(scope="module", params=["squad_1.1", "squad_2.0"])
def squad(request: pytest.FixtureRequest, exported: Callable[[str], Any]) -> Any:
  return exported(request.param)


@pytest.fixture(scope="module")
def expected(squad, tokenizer):
  """Features, inputs and decoded answers of fine-tuning."""
  task, model, _, _, *_ = squad
  questions = [
    Question(str(b), *texts) for b, texts in enumerate(zip(QUESTIONS, CONTEXTS, strict=True))
  ]
  task = SquadTask(
    {"test": SquadData(task.squad_version, questions, labelled=False)},
    version=task.squad_version,
    settings=SquadSettings(**SIZES),
    tokenizer=tokenizer,
  )
  features = task.splits["test"]
  x, _, _ = numpy_batch(
    task.features("test"), range(len(features)), batch_size=len(features), length=24
  )
  outputs = {name: array.numpy() for name, array in model(x).items()}
  return features, x, decode(features, outputs)


def test_answers_equal_those_of_fine_tuning(squad, expected) -> None:
  task, _, _, session, *_ = squad
  features, _, decoded = expected
  outputs = session.run(
    "serving_default", {"question": as_bytes(QUESTIONS), "context": as_bytes(CONTEXTS)}
  )
  for b, each in enumerate(decoded):
    texts = [candidate.text for candidate in each.candidates]
    scores = np.array([candidate.score for candidate in each.candidates])
    assert [text.decode() for text in outputs["answers"][b][: len(texts)]] == texts
    np.testing.assert_allclose(outputs["scores"][b][: len(texts)], scores, rtol=1e-5, atol=1e-5)
    assert not outputs["answers"][b][len(texts) :].any()
    for text, start, end in zip(texts, outputs["starts"][b], outputs["ends"][b], strict=False):
      assert CONTEXTS[b][start:end] == text
    if texts != [""]:
      np.testing.assert_allclose(outputs["probabilities"][b].sum(), 1.0, rtol=1e-5)
      weights = np.exp(scores - scores.max())
      np.testing.assert_allclose(
        outputs["probabilities"][b][: len(texts)], weights / weights.sum(), atol=1e-5
      )
  threshold = task.null_score_diff_threshold if task.squad_version == "2.0" else None
  final = best_texts(features.data, decoded, threshold=threshold)
  assert [answer.decode() for answer in outputs["answer"]] == [
    final[str(b)] for b in range(len(QUESTIONS))
  ]
  if task.squad_version == "2.0":
    nulls = [each.null_score for each in decoded]
    np.testing.assert_allclose(outputs["null_scores"], nulls, atol=1e-5)
    assert {bool(answer) for answer in outputs["answer"]} == {True, False}  # Both are seen.
  assert not outputs["truncated"].any()


def test_contexts_are_read_up_to_a_limit(squad) -> None:
  session = squad.session
  texts = [LONG * 40, (LONG + " ") * 600, "\xff".encode("latin-1").decode("latin-1"), "a\x00b"]
  outputs = session.run(
    "serving_default", {"question": as_bytes(["sky"] * 4), "context": as_bytes(texts)}
  )
  np.testing.assert_array_equal(outputs["truncated"], [True, True, False, False])
  assert (outputs["ends"] < 600).all()


def test_a_length_without_room_for_text_is_refused(config, tokenizer, tmp_path) -> None:
  task = TaskSpec(
    kind="question_answering", name="q", squad_version="1.1", max_seq_length=24, max_query_length=8
  )
  write_fine_tuned_run(tmp_path / "run", task, config, tokenizer)
  with pytest.raises(UserError, match="Raise --max_seq_length"):
    export_saved_model(
      model="question_answering",
      init_checkpoint=str(tmp_path / "run"),
      output_dir=str(tmp_path / "e"),
      settings=ExportSettings(max_seq_length=11),
    )
