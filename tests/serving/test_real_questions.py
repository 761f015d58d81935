"""Answers of an export to real questions are those of `run_squad.py`'s own decoding."""

import pathlib

import numpy as np
import pytest
from reference.session_loader import SessionModel
from reference.tiny_run import write_fine_tuned_run
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.finetuning.squad.decoding import decode
from albert_tf.finetuning.squad.features import make_features
from albert_tf.finetuning.squad.reading import read_squad
from albert_tf.finetuning.squad.settings import SquadSettings
from albert_tf.finetuning.task_spec import TaskSpec
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
  rows = [{name: np.pad(a, (0, 128 - len(a))) for name, a in row.items()} for row in features.rows]
  outputs = model({name: tf.constant(np.stack([row[name] for row in rows])) for name in rows[0]})
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
      texts = [candidate.text for candidate in expected.candidates]
      scores = [candidate.score for candidate in expected.candidates]
      np.testing.assert_allclose(got["scores"][b][: len(texts)], scores, rtol=1e-4)
      answers = [answer.decode() for answer in got["answers"][b]]
      assert answers[0] == texts[0]
      shared += len(set(answers) & set(texts)) / len(texts)
      for answer, start, end in zip(answers, got["starts"][b], got["ends"][b], strict=True):
        assert contexts[begin + b][start:end] == answer
  assert shared / len(contexts) > 0.99  # Of nearly equal scores the last of the list may be another.
