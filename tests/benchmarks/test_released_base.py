"""`released_base.py` on a stand-in: a tiny model in the files of the release, and small folders of GLUE."""

import json

import pytest
from support import tiny_run
from support.commands.script_runs import run_command
from support.goldens import TINY, golden_checkpoint
from support.synthetic_checkpoint import write_tf1
from support.task_files import write_glue

from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.records.tfrecord import masked_crc32c

QUICK = (
  "--seeds=1,2 --max_seq_length=16 --num_train_steps=6 --num_warmup_steps=1 --train_batch_size=8 "
  "--save_checkpoints_steps=3"
)


@pytest.mark.slow
def test_a_stand_in_is_converted_trained_and_compared(tmp_path):
  tokenizer = tiny_run.tokenizer()
  model = tiny_run.tiny_model(tokenizer.vocab_size)
  released = write_tf1(tmp_path / "albert_base", model.config, tiny_run.values_of(model))
  tokenizer.save_pretrained(released)
  (tmp_path / "glue").mkdir()
  write_glue(tmp_path / "glue", 24)
  command = (
    "benchmarks/released_base.py",
    f"--released={released}",
    f"--data_dir={tmp_path / 'glue'}",
    f"--output_dir={tmp_path / 'out'}",
    f"--task_flags={QUICK}",
  )
  done = run_command(*command)
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
  assert "0 of 30 tensors have the checksums of the released ALBERT-base v2" in done.stdout
  # MRPC starts from the best seed of MNLI.
  mnli, mrpc = (
    json.loads((tmp_path / f"out/{name}/results.json").read_text()) for name in ("mnli", "mrpc")
  )
  assert f"out/mnli/{mnli['best_run']}" in mrpc["init_checkpoint"]
  assert set(mnli["seeds"]) == {"1", "2"}
  table = (tmp_path / "out/table.md").read_text()
  published = {
    row.split("|")[1].strip(): row.split("|")[5].strip() for row in table.splitlines()[5:]
  }
  assert {"sst-2": "92.9", "mnli": "84.6", "mrpc": "–"}.items() <= published.items()


def test_the_checksums_are_those_that_tensorflow_1_stored():
  """In the index of a checkpoint, as in the recorded table of the release."""
  index = (TINY / "model.ckpt-best.index").read_bytes()
  variables = read_checkpoint(golden_checkpoint("tiny")).variables
  assert len(variables) > 30
  for name, value in variables.items():
    assert masked_crc32c(value.tobytes()) in index, name
