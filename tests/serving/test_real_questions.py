"""Answers of an export to real questions are those of `run_squad.py`'s own decoding."""

import pathlib

import numpy as np
import pytest
from reference.batches import numpy_batch
from support.serving.session_loader import SessionModel
from support.tiny_run import write_fine_tuned_run

from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.finetuning.tasks.squad.answers import decode
from albert_tf.finetuning.tasks.squad.features import make_features
from albert_tf.finetuning.tasks.squad.read import read_squad
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.finetuning.tasks.squad.task import SquadTask
from albert_tf.serving import export_saved_model
from albert_tf.tokenization import AlbertTokenizer

SIZES = {"max_seq_length": 128, "max_query_length": 32, "doc_stride": 48, "max_answer_length": 20}
COUNT = 160


@pytest.mark.slow
def test_real_questions(shared_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  data = read_squad(str(shared_dir / "data/squad/dev-half-v2.0.json"), version="2.0")
  answerable = [index for index, question in enumerate(data.questions) if question.answers]
  data = data.subset(answerable[:: len(answerable) // COUNT])._replace(version="1.1")
  tokenizer = AlbertTokenizer.from_pretrained(str(shared_dir / "data/vocab"))
  config = AlbertConfig.from_name(
    "tiny", vocab_size=tokenizer.vocab_size, embedding_size=8, hidden_size=12, num_hidden_layers=2,
    num_attention_heads=3, intermediate_size=20, max_position_embeddings=128,
  )  # fmt: skip
  task = TaskSpec(kind="question_answering", name="squad", squad_version="1.1", **SIZES)
  model = write_fine_tuned_run(tmp_path / "run", task, config, tokenizer)
  path = export_saved_model(
    model="question_answering", init_checkpoint=str(tmp_path / "run"), output_dir=str(tmp_path / "e")
  )
  features = make_features(data, tokenizer=tokenizer, settings=SquadSettings(**SIZES))
  inputs = SquadTask(version="1.1", settings=features.settings, predict=features).features("eval")
  x, _, _ = numpy_batch(inputs, range(len(features)), batch_size=len(features), length=128)
  outputs = model(x)
  decoded = decode(features, {name: array.numpy() for name, array in outputs.items()})

  session = SessionModel(path)
  contexts = [data.paragraphs[question.paragraph].context for question in data.questions]
  shared = 0.0
  for begin in range(0, len(contexts), 16):
    part = slice(begin, begin + 16)
    got = session.run(
      "serving_default",
      {
        "question": np.array([question.text.encode() for question in data.questions[part]], object),
        "context": np.array([context.encode() for context in contexts[part]], object),
      },
    )
    for b, expected in enumerate(decoded[part]):
      scores = {candidate.text: candidate.score for candidate in expected.candidates}
      answers = [answer.decode() for answer in got["answers"][b]]
      served = dict(zip(answers, got["scores"][b], strict=True))
      both = [text for text in scores if text in served]
      np.testing.assert_allclose(
        [served[text] for text in both], [scores[text] for text in both], rtol=0, atol=4e-6
      )
      assert answers[0] == expected.candidates[0].text
      shared += len(both) / len(scores)
      for answer, start, end in zip(answers, got["starts"][b], got["ends"][b], strict=True):
        assert contexts[begin + b][start:end] == answer
  # Batches of other shapes round otherwise: of equal logits another one may be the last that is tried, or kept.
  assert shared / len(contexts) > 0.99
