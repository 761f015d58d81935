"""Missing buckets, refused access and wrong contents: one message, no traceback, no partial files."""

import errno
import tempfile

import pytest
from support.bucket.gcs_proxy import Faults
from support.bucket.story import pretraining
from support.tiny_records import random_examples, tiny_config, write_records

from albert_tf import files
from albert_tf.cli import doctor


@pytest.fixture(scope="module")
def inputs(module_bucket, tmp_path_factory):
  """Flags of a small pretraining run with files in the bucket."""
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
  """The message with which run_pretrain.py ends with the status of a user error."""
  step = pretraining(bucket.url, **{**inputs, **changes})
  done = commands.run(step.script, **step.flags)
  assert done.status == 2, done.stderr[-3000:]
  assert "Traceback" not in done.stderr
  return done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_bucket_that_does_not_exist(bucket, commands, inputs):
  for flag, value in (
    (
      "output_dir",
      "gs://no-such-bucket/run",
    ),  # TensorFlow's own makedirs would look for it for ever.
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
  for what, changes in (
    ("^upload_start albert/shut", {"output_dir": bucket.url("shut")}),
    ("^stat ", {}),
  ):
    bucket.faults = Faults(refuse=((what, status),))
    message = refused(commands, bucket, inputs, **changes)
    assert words in message
    assert f"(HTTP {status})" in message
  assert bucket.names("shut") == []


def test_a_store_that_does_not_answer(bucket, commands, inputs):
  bucket.faults = Faults(refuse=(("^stat albert/in/albert_config", 503),))
  message = refused(commands, bucket, inputs)
  assert "the store did not answer, nor when asked again" in message


@pytest.mark.slow
def test_the_doctor_names_what_is_wrong_with_a_bucket(bucket, monkeypatch):
  for name, value in bucket.environment().items():
    monkeypatch.setenv(name, value)
  no_permission = Faults(refuse=((r"^upload_start albert/run/\.doctor", 403),))
  for url, faults, found, advice in (
    ("gs://albert/run", Faults(), "written, read back, removed", ""),
    ("gs://albert/run", no_permission, "no permission", "gs://BUCKET"),
    ("gs://no-such-bucket/run", Faults(), "there is no such bucket", "gs://BUCKET"),
  ):
    bucket.faults = faults
    check = doctor.check_directory(url)
    assert check.result.startswith(url)
    assert found in check.result
    assert (advice in check.advice, bool(check.advice)) == (True, bool(advice))
  assert [name for name in bucket.names() if "doctor" in name] == []


def test_an_upload_taken_for_complete_is_made_again(bucket, commands):
  """A connection breaks during an upload: the server stores nothing, and the client believes that it is complete."""
  program = "tests/bucket/programs/write_one.py"
  before = bucket.proxy.counts().get("fault:cut_upload", 0)
  bucket.faults = Faults(rate=1, how=("cut_upload",), on="^upload ", at_most=2)
  done = commands.run(program, path=bucket.url("cut/a"), size=100_000)
  assert done.status == 0, done.stderr
  assert bucket.proxy.counts()["fault:cut_upload"] == before + 2
  assert bucket.get("cut/a") == b"x" * 100_000
  bucket.faults = Faults(rate=1, how=("cut_upload",), on="^upload ")
  done = commands.run(program, path=bucket.url("cut/a"), size=200_000)
  assert done.status == 2, done.stderr
  assert "of 200000 bytes arrived, 4 times" in done.stderr
  assert bucket.names("cut/") == ["cut/a"]
  assert bucket.get("cut/a") == b"x" * 100_000


def test_a_full_disk_of_temporary_files_is_not_the_stores_fault(monkeypatch):
  def move_into_place(source, target):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(files, "move_into_place", move_into_place)
  with pytest.raises(
    files.StoreError, match=f"{tempfile.gettempdir()}: no space is left .* set TMPDIR"
  ):
    files.write_text("gs://albert/file", "text")
