"""A bucket that is missing, foreign, closed or of another kind: one message, no traceback, nothing left behind."""

import pytest
from support.bucket.gcs_proxy import Faults
from support.bucket.story import pretraining
from support.tiny_records import random_examples, tiny_config, write_records


@pytest.fixture(scope="module")
def inputs(module_bucket, tmp_path_factory):
  """Flags of a small pretraining whose files lie in the bucket."""
  folder = tmp_path_factory.mktemp("inputs")
  write_records(folder / "train-0.tfrecord", random_examples(20, seed=1))
  (folder / "albert_config.json").write_text(tiny_config().to_json_string())
  module_bucket.put_folder(folder, "in")
  return {
    "input_file": module_bucket.url("in/train-*"),
    "eval_input_file": "",
    "albert_config_file": module_bucket.url("in/albert_config.json"),
    "max_seq_length": 10,
    "max_predictions_per_seq": 3,
    "num_train_steps": 2,
    "train_batch_size": 4,
  }


def refused(commands, bucket, inputs, **changes):
  """What run_pretrain.py says when it ends with the status of a user's mistake."""
  step = pretraining(bucket.url, **{**inputs, **changes})
  done = commands.run(step.script, **step.flags)
  assert done.status == 2, done.stderr[-3000:]
  assert "Traceback" not in done.stderr
  return done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_bucket_that_does_not_exist(bucket, commands, inputs):
  for flag, value in (
    ("output_dir", "gs://no-such-bucket/run"),  # TensorFlow's own makedirs would look for it for ever.
    ("input_file", "gs://no-such-bucket/train-*"),
    ("albert_config_file", "gs://no-such-bucket/c.json"),
  ):
    message = refused(commands, bucket, inputs, **{flag: value})
    assert "gs://no-such-bucket/" in message
    assert "there is no such bucket (HTTP 404). Make it, or check its name" in message


def test_a_file_system_that_tensorflow_does_not_have(bucket, commands, inputs):
  for flag, value in (("output_dir", "s3://bucket/run"), ("input_file", "s3://bucket/train-*")):
    message = refused(commands, bucket, inputs, **{flag: value})
    assert "TensorFlow has no file system for s3://" in message
    assert "Take gs://, or mount it as a folder" in message


def test_a_directory_of_something_else(bucket, commands, inputs):
  bucket.put("else/thesis.tex", b"text")
  bucket.put("else/left.tmp-0a1b2c3d", b"half")
  message = refused(commands, bucket, inputs, output_dir=bucket.url("else"))
  assert "A run needs a new or empty output directory" in message
  assert "which holds thesis.tex and no run.json" in message
  assert bucket.names("else/") == ["else/left.tmp-0a1b2c3d", "else/thesis.tex"]


@pytest.mark.parametrize(
  ("status", "words"), [(401, "credentials are missing or have expired"), (403, "no permission")]
)
def test_an_account_that_may_not(bucket, commands, inputs, status, words):
  for what, changes in (("^upload_start albert/shut", {"output_dir": bucket.url("shut")}), ("^stat ", {})):
    bucket.faults = Faults(refuse=((what, status),))
    message = refused(commands, bucket, inputs, **changes)
    assert words in message
    assert f"(HTTP {status})" in message
  assert bucket.names("shut") == []


def test_a_store_that_does_not_answer(bucket, commands, inputs):
  bucket.faults = Faults(refuse=(("^stat albert/in/albert_config", 503),))
  message = refused(commands, bucket, inputs)
  assert "the store did not answer, nor when asked again" in message
