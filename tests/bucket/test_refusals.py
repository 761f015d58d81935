"""Missing buckets, refused access and wrong contents: one message, no traceback, no partial files."""

import pytest
from support.bucket.gcs_proxy import Faults
from support.bucket.story import pretraining
from support.tiny_records import random_examples, tiny_config, write_records

from albert_tf.cli import doctor

pytestmark = pytest.mark.slow


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
  }


@pytest.fixture
def refused(commands, bucket, inputs):
  """The message with which run_pretrain.py ends with the status of a user error."""

  def message(**changes):
    step = pretraining(bucket.url, **{**inputs, **changes})
    done = commands.run(step.script, **step.flags)
    assert done.status == 2, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]

  return message


@pytest.mark.parametrize("flag", ["output_dir", "input_file", "albert_config_file"])
def test_a_bucket_that_does_not_exist(refused, flag):
  """TensorFlow's own makedirs would look for it for ever."""
  message = refused(**{flag: "gs://no-such-bucket/a-*"})
  assert "gs://no-such-bucket/" in message
  assert "there is no such bucket (HTTP 404). Make it, or check its name" in message


@pytest.mark.parametrize("flag", ["output_dir", "input_file"])
def test_a_file_system_that_tensorflow_does_not_have(refused, flag):
  message = refused(**{flag: "s3://bucket/a-*"})
  assert "TensorFlow has no file system for s3://" in message
  assert "Take gs://, or mount it as a folder" in message


def test_a_directory_of_something_else(bucket, refused):
  bucket.put("else/thesis.tex", b"text")
  bucket.put("else/left.tmp-0a1b2c3d", b"half")
  message = refused(output_dir=bucket.url("else"))
  assert "A run needs a new or empty output directory" in message
  assert "which holds thesis.tex and no run.json" in message
  assert bucket.names("else/") == ["else/left.tmp-0a1b2c3d", "else/thesis.tex"]


@pytest.mark.parametrize(
  ("request_of", "status", "words"),
  [
    ("^upload_start albert/shut", 401, "credentials are missing or have expired (HTTP 401)"),
    ("^upload_start albert/shut", 403, "no permission"),
    ("^stat ", 403, "(HTTP 403)"),
    ("^stat albert/in/albert_config", 503, "the store did not answer, nor when asked again"),
  ],
)
def test_an_answer_that_says_no(bucket, refused, request_of, status, words):
  bucket.faults = Faults(refuse=((request_of, status),))
  assert words in refused(output_dir=bucket.url("shut"))
  assert bucket.names("shut") == []


@pytest.mark.parametrize(
  ("url", "refuse", "found", "advice"),
  [
    ("gs://albert/run", (), "written, read back, removed", ""),
    (
      "gs://albert/run",
      ((r"^upload_start albert/run/\.doctor", 403),),
      "no permission",
      "gs://BUCKET",
    ),
    ("gs://no-such-bucket/run", (), "there is no such bucket", "gs://BUCKET"),
  ],
)
def test_the_doctor_names_what_is_wrong_with_a_bucket(
  bucket, monkeypatch, url, refuse, found, advice
):
  for name, value in bucket.environment().items():
    monkeypatch.setenv(name, value)
  bucket.faults = Faults(refuse=refuse)
  check = doctor.check_directory(url)
  assert check.result.startswith(url)
  assert found in check.result
  assert advice in check.advice
  assert bool(advice) == bool(check.advice)
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
