"""results.json, and the parts of a start: configuration, tokenizer and weights."""

import dataclasses
import shutil

import pytest
from support import tiny_run
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task

from albert_tf.errors import UserError
from albert_tf.finetuning.engine.fit import fine_tune
from albert_tf.finetuning.initialize import read_start
from albert_tf.lock import DirectoryLock
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.tokenization import WordPieceTokenizer


def test_a_directory_that_another_process_writes_in_is_refused(tmp_path):
  task = tiny_task({"train": made_up_texts(16), "eval": made_up_texts(16)})
  settings = dataclasses.replace(QUICK, num_train_steps=1)
  lock = DirectoryLock(str(tmp_path))
  lock.acquire()
  with pytest.raises(UserError, match="One process at a time"):
    fine_tune(task, settings, start=tiny_start(), output_dir=str(tmp_path))
  assert [path.name for path in tmp_path.iterdir()] == ["lock.json"]
  lock.release()
  fine_tune(task, settings, start=tiny_start(), output_dir=str(tmp_path))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
  """Configuration, tokenizer and weights, as a run directory has them."""
  folder = tmp_path_factory.mktemp("run")
  tiny_run.write_run(folder, AlbertForPreTraining(tiny_start().config), tiny_run.tokenizer())
  return folder


def test_a_start_of_weights_or_from_scratch(run_folder):
  start = read_start(str(run_folder))
  assert start.config == tiny_start().config
  assert start.checkpoint.path == str(run_folder / "checkpoints/model.ckpt-10")
  assert not read_start(str(run_folder), do_lower_case=False).tokenizer.config.do_lower_case
  files = {
    "spm_model_file": str(run_folder / "spm.model"),
    "albert_config_file": str(run_folder / "albert_config.json"),
  }
  assert read_start("", from_scratch=True, **files).checkpoint is None
  for options in ({}, {"from_scratch": True}):
    with pytest.raises(UserError, match="--from_scratch with --albert_config_file"):
      read_start("", **options)


def test_a_wordpiece_vocabulary(run_folder, tmp_path):
  """The Chinese models have one; the fine-tuned run keeps it."""
  vocabulary = tmp_path / "vocab_chinese.txt"
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "空", "sky", "##s"]
  count = tiny_start().config.vocab_size
  vocabulary.write_text("\n".join(pieces + [f"x{i}" for i in range(count - len(pieces))]) + "\n")
  start = read_start(str(run_folder / "checkpoints/model.ckpt-10"), vocab_file=str(vocabulary))
  assert start.tokenizer.encode("Skys 天空") == [7, 8, 5, 6]
  start.tokenizer.save_pretrained(str(tmp_path))
  assert (
    WordPieceTokenizer.from_pretrained(str(tmp_path / "vocab.txt")).pieces == start.tokenizer.pieces
  )
  (tmp_path / "albert_config.json").write_text(tiny_start().config.to_json_string())
  for file in (run_folder / "checkpoints").glob("model.ckpt-10.*"):
    shutil.copy(file, tmp_path)
  assert isinstance(read_start(str(tmp_path)).tokenizer, WordPieceTokenizer)
  (tmp_path / "vocab.txt").unlink()
  # The release's own name is found too.
  assert isinstance(read_start(str(tmp_path)).tokenizer, WordPieceTokenizer)
  vocabulary.unlink()
  with pytest.raises(UserError, match="--vocab_file"):
    read_start(str(tmp_path))
