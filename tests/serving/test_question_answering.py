"""Question answering exports give the answers that fine-tuning's own decoding gives."""

import numpy as np
import pytest
from serving.conftest import SQUAD
from support.tiny_run import WORDS, as_bytes, write_fine_tuned_run

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.answers import best_texts, decode
from albert_tf.finetuning.tasks.squad.read import Question, SquadData
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.finetuning.tasks.squad.task import SquadTask
from albert_tf.keras_api.tasks import open_model

SETTINGS = SquadSettings(max_seq_length=24, max_query_length=8, doc_stride=6, max_answer_length=5)
LONG = " ".join(WORDS[(7 * i) % len(WORDS)] for i in range(30))
# Context → question.
TEXTS = {
  "the sky is blue": "what is blue?",
  LONG: "the long grass grows under old trees all day long",
  "": "",
  "The  Sky, is BLUE zebra\tgrass.": "sky",
  "the the the the the the": "the",
  "\u00a0birds sing": "x",
}


def fine_tuned_answers(task, model, tokenizer):
  """Features and decoded answers of fine-tuning."""
  version = task.squad_version
  questions = [Question(context, question, context) for context, question in TEXTS.items()]
  splits = {"test": SquadData(version, questions, labelled=False)}
  squad = SquadTask(splits, version=version, settings=SETTINGS, tokenizer=tokenizer)
  features = squad.splits["test"]
  rows = squad.features("test")
  (x,) = rows.padded(24)
  outputs = {name: array.numpy() for name, array in model(x).items()}
  return features, decode(features, outputs)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["squad_1.1", "squad_2.0"])
def test_answers_equal_those_of_fine_tuning(key, exported, tokenizer) -> None:
  task, model, _, session, _ = exported(key)
  features, decoded = fine_tuned_answers(task, model, tokenizer)
  inputs = {"question": as_bytes(list(TEXTS.values())), "context": as_bytes(list(TEXTS))}
  outputs = session.run("serving_default", inputs)
  for b, (context, answers) in enumerate(zip(TEXTS, decoded, strict=True)):
    texts = [candidate.text for candidate in answers.candidates]
    scores = np.array([candidate.score for candidate in answers.candidates])
    count = len(texts)
    assert [text.decode() for text in outputs["answers"][b][:count]] == texts
    assert not outputs["answers"][b][count:].any()
    np.testing.assert_allclose(outputs["scores"][b][:count], scores, rtol=1e-5, atol=1e-5)
    for text, start, end in zip(texts, outputs["starts"][b], outputs["ends"][b], strict=False):
      assert context[start:end] == text
    if texts != [""]:
      probabilities = outputs["probabilities"][b]
      np.testing.assert_allclose(probabilities.sum(), 1.0, rtol=1e-5)
      weights = np.exp(scores - scores.max())
      np.testing.assert_allclose(probabilities[:count], weights / weights.sum(), atol=1e-5)
  threshold = task.null_score_diff_threshold if key == "squad_2.0" else None
  final = best_texts(features.data, decoded, threshold=threshold)
  assert [answer.decode() for answer in outputs["answer"]] == list(final.values())
  if key == "squad_2.0":
    nulls = [answers.null_score for answers in decoded]
    np.testing.assert_allclose(outputs["null_scores"], nulls, atol=1e-5)
    assert {bool(answer) for answer in outputs["answer"]} == {True, False}  # Both are seen.
  assert not outputs["truncated"].any()


@pytest.mark.slow
def test_contexts_are_read_up_to_a_limit(exported) -> None:
  texts = as_bytes([LONG * 40, (LONG + " ") * 600, "ÿ", "a\x00b"])
  inputs = {"question": as_bytes(["sky"] * 4), "context": texts}
  outputs = exported("squad_2.0").session.run("serving_default", inputs)
  np.testing.assert_array_equal(outputs["truncated"], [True, True, False, False])
  assert (outputs["ends"] < 600).all()


def test_a_length_without_room_for_text_is_refused(config, tokenizer, tmp_path) -> None:
  write_fine_tuned_run(tmp_path / "run", SQUAD(squad_version="1.1"), config, tokenizer)
  model = open_model("question_answering", str(tmp_path / "run"))
  with pytest.raises(UserError, match=r"Received: 11, .*--max_seq_length"):
    model.export(tmp_path / "e", max_seq_length=11)
