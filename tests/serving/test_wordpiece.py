"""Exports with a WordPiece vocabulary take strings, and equal the Python tokenizer and model."""

import pathlib
import string

import numpy as np
import pytest
from reference import tokenization as reference
from support import tiny_run
from support.tiny_run import as_bytes
from support.wordpiece import SPECIAL
import tensorflow as tf

from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.tasks import open_model
from albert_tf.serving.check import check_saved_model
from albert_tf.serving.export import make_module
from albert_tf.serving.loaded_model import LoadedModel
from albert_tf.serving.settings import ExportSettings
from albert_tf.tokenization import WordPieceTokenizer

TEXTS = ["The sky, über all!", "small birdsong 天空", "", "a\u0301\u200bb Σ ?"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WordPieceTokenizer:
  inner = [f"##{part}" for part in (*string.ascii_lowercase, "song")]
  pieces = [*SPECIAL, *tiny_run.WORDS, *string.ascii_lowercase, *inner, "天", "空", ",", "!", "σ"]
  path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
  path.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
  return WordPieceTokenizer.from_pretrained(str(path))


@pytest.fixture(scope="module")
def model(tokenizer: WordPieceTokenizer):
  return tiny_run.tiny_model(tokenizer.vocab_size)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, model, tokenizer) -> str:
  directory = tmp_path_factory.mktemp("runs") / "run"
  tiny_run.write_run(directory, model, tokenizer)
  return str(directory)


@pytest.mark.slow
def test_fill_mask(tmp_path: pathlib.Path, run_dir: str, model, tokenizer: WordPieceTokenizer):
  path = str(tmp_path / "1")
  open_model("fill_mask", run_dir).export(path)
  text = "The Sky is [MASK]birds, [MASK]!"
  batch = reference.batch(tokenizer, [text], allow_mask=True)
  positions = np.nonzero(batch["input_ids"] == tokenizer.mask_id)[1][np.newaxis]
  logits = model({**batch, "masked_lm_positions": positions})["mlm_logits"].numpy()[0]
  logits[:, : len(SPECIAL)] = -np.inf
  expected = [[tokenizer.pieces[index] for index in row] for row in np.argsort(-logits)[:, :5]]
  outputs = LoadedModel(path).run("serving_default", {"text": as_bytes([text])})
  assert [[word.decode() for word in row[:5]] for row in outputs["words"][0]] == expected
  results = check_saved_model(path)
  assert all(result.passed for result in results), results
  assert results[1].detail.endswith("of TensorFlow Text: WordpieceTokenizeWithOffsets")


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", ["vocab.txt", "vocab_chinese.txt"])
def test_straight_from_a_tf_hub_module(tmp_path: pathlib.Path, model, tokenizer, vocabulary: str):
  """As Google's are, unpacked: no sentence-order head, and a vocabulary under a name of its own."""
  assets = tmp_path / "assets"
  for folder in (assets, tmp_path / "variables"):
    folder.mkdir()
  (tmp_path / "saved_model.pb").touch()
  (assets / "albert_config.json").write_text(model.config.to_json_string())
  tokenizer.save_pretrained(str(assets))
  (assets / "tokenizer.json").unlink()
  (assets / "vocab.txt").rename(assets / vocabulary)
  values = tiny_run.values_of(model)
  kept = {name: value for name, value in values.items() if "seq_relationship" not in name}
  write_bundle(str(tmp_path / "variables/variables"), kept)
  module = make_module(open_model("encoder", str(tmp_path)), ExportSettings(), None)
  outputs = module.signatures()["serving_default"](tf.constant(TEXTS))
  batch = reference.batch(tokenizer, TEXTS)
  np.testing.assert_array_equal(outputs["input_ids"], batch["input_ids"])
  expected = model.encoder(batch, training=False)["pooled_output"]
  np.testing.assert_allclose(outputs["pooled_output"], expected, atol=1e-5)


def test_other_kinds_are_refused(tmp_path: pathlib.Path, model, tokenizer: WordPieceTokenizer):
  task = TaskSpec(kind="multiple_choice", name="c", max_seq_length=16, max_qa_length=8)
  run = tmp_path / "run"
  tiny_run.write_fine_tuned_run(run, task, model.config, tokenizer)
  with pytest.raises(UserError, match="Received: kind='choices'"):
    open_model("multiple_choice", str(run))
