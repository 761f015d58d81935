"""Errors name their true cause: real ones of this machine, and messages that real machines gave."""

import dataclasses
import pathlib

import pytest
from support.tiny_pretraining import tiny_settings
from support.tiny_records import SPEC, random_examples, write_records
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pipelines import checks
from albert_tf.pipelines.batches import evaluation_batches, training_batches
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.training import failures
from albert_tf.training.failures import Cause, cause_of, explained, informative_line, lost_task

# A tf.distribute.Server worker that was killed while a function ran on it; TensorFlow 2.21.
KILLED_WORKER = """Graph execution error:

Detected at node while/LoopCond/_14/_18 defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) UNAVAILABLE:  Socket closed
Additional GRPC error information from remote target /job:worker/replica:0/task:1/device:CPU:0 while calling /tensorflow.eager.EagerService/RunComponentFunction:
:UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}
\t [[{{node while/LoopCond/_14/_18}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_f_56]"""  # noqa: E501
COLLECTIVE = """Collective ops is aborted by: Socket closed
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:
:UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}
The error could be from a previous operation. Restart your program to reset. [Op:__inference__run_1]"""  # noqa: E501
RESTARTED_WORKER = (
  "Unable to find a context_id matching the specified one (123). Perhaps the worker was restarted, or the "
  "context was GC'd?\nAdditional GRPC error information from remote target /job:worker/replica:0/task:3:"
)
BUCKET_GONE = """{{function_node __wrapped__WriteFile_device_/job:localhost/replica:0/task:0/device:CPU:0}} All 10 retry attempts failed. The last failure: Error executing an HTTP request: libcurl code 7 meaning 'Could not connect to server', error details: Failed to connect
\t when reading gs://bucket/train-00003-of-00008.tfrecord [Op:ReadFile]"""  # noqa: E501
BUCKET_503 = (
  "Error executing an HTTP request: HTTP response code 503 with body 'Service Unavailable'\n"
  "\t when initiating an upload to gs://bucket/run/checkpoints/model.ckpt-500.index"
)
EXPIRED = (
  'Error executing an HTTP request: HTTP response code 401 with body \'{"error": "Invalid Credentials"}\'\n'
  "\t when reading metadata of gs://bucket/run"
)
# github.com/tensorflow/tpu/issues/385, LargeWorldModel/LWM/issues/60, pytorch/xla/issues/9524.
TPU_COMPILE = (
  "From /job:worker/replica:0/task:0:\nCompilation failure: Ran out of memory in memory space hbm. Used 8.38G of "
  "8.00G hbm. Exceeded hbm capacity by 385.25M.\n\nTotal hbm usage >= 8.88G:\n    reserved        530.00M"
)
TPU_COMPILE_NEW = (
  "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.95G of "
  "15.48G hbm. Exceeded hbm capacity by 6.47G."
)
TPU_RUN = "Attempting to allocate 180.63M. That was not possible. There are 105.31M free.; (0x0x0_HBM0)"
TPU_VMEM = (
  "XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 32.42M of 16.00M vmem."
)
CPU_OOM = """{{function_node __wrapped__Fill_device_/job:localhost/replica:0/task:0/device:CPU:0}} OOM when allocating tensor with shape[1000000,1000000] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu [Op:Fill] name: """  # noqa: E501
UNSUPPORTED = (
  "Compilation failure: Detected unsupported operations when trying to compile graph on XLA_TPU_JIT: Where"
)
ERRORS = tf.errors


@pytest.mark.parametrize(
  ("kind", "message", "cause", "told"),
  [
    (
      ERRORS.UnavailableError,
      KILLED_WORKER,
      Cause.WORKER,
      "worker 1 no longer answers (UNAVAILABLE:  Socket",
    ),
    (ERRORS.UnavailableError, COLLECTIVE, Cause.WORKER, "worker 1 no longer answers (Collective ops is"),
    (ERRORS.AbortedError, RESTARTED_WORKER, Cause.WORKER, "worker 3 no longer answers (Unable to find"),
    (ERRORS.AbortedError, BUCKET_GONE, Cause.STORAGE, "must answer. Received: All 10 retry attempts failed"),
    (ERRORS.UnavailableError, BUCKET_503, Cause.STORAGE, "HTTP response code 503 with body"),
    (ERRORS.UnavailableError, EXPIRED, Cause.PERMISSION, "Renew the credentials"),
    (ERRORS.PermissionDeniedError, "no access to gs://b", Cause.PERMISSION, "allowed to read its records"),
    (ERRORS.ResourceExhaustedError, TPU_COMPILE, Cause.MEMORY, "Used 8.38G of 8.00G hbm. Exceeded hbm"),
    (ERRORS.ResourceExhaustedError, TPU_COMPILE_NEW, Cause.MEMORY, "--gradient_accumulation_steps=2, now 1"),
    (ERRORS.ResourceExhaustedError, TPU_RUN, Cause.MEMORY, "There are 105.31M free"),
    (ERRORS.ResourceExhaustedError, CPU_OOM, Cause.MEMORY, "(--remat)"),
    (ERRORS.InternalError, TPU_VMEM, Cause.COMPILATION, "must compile for the devices"),
    (ERRORS.InvalidArgumentError, UNSUPPORTED, Cause.COMPILATION, "XLA_TPU_JIT: Where. tpu_scripts/compile"),
    (ERRORS.UnavailableError, "try again", Cause.SERVICE, "must answer until it ends. Received: try again"),
    (ERRORS.InvalidArgumentError, "Incompatible shapes: [2,3] vs. [2,4]", Cause.OTHER, ""),
    (ERRORS.NotFoundError, "Could not find device for node: {{node Where}}", Cause.RECORDS, ""),
  ],
)
def test_type_and_message_together_name_the_cause(tmp_path, kind, message, cause, told):
  error = kind(None, None, message)
  assert cause_of(error) is cause
  settings = tiny_settings(tmp_path, "run")
  if not told:  # A fault of the program keeps its type and traceback.
    with pytest.raises(kind):
      explained(raising(error), settings, None)
    return
  with pytest.raises(UserError) as caught:
    explained(raising(error), settings, None)
  assert told in str(caught.value)
  assert ("All workers and TPUs" in str(caught.value)) == (cause is Cause.WORKER)
  assert "\n" not in str(caught.value)


def raising(error):
  def run():
    raise error

  return run


@pytest.mark.parametrize(
  ("error", "told"),
  [
    (OSError(28, "No space left on device", "/run/metrics.jsonl"), "stay writable. Received: /run/metrics"),
    (
      OSError(5, "All 10 retry attempts failed", "gs://b/run/x"),
      "must answer. Received: gs://b/run/x: All 10",
    ),
    (OSError(13, "HTTP response code 401", "gs://b/run/x"), "Renew the credentials"),
    (OSError("broken"), r"run \(broken\)"),
  ],
)
def test_a_file_that_cannot_be_written_is_a_disk_a_bucket_or_a_permission(tmp_path, error, told):
  with pytest.raises(UserError, match=told):
    explained(raising(error), tiny_settings(tmp_path, "run"), None)


def test_the_line_that_tells_and_the_worker_it_blames():
  assert informative_line("") == "no reason given"
  assert informative_line(TPU_COMPILE).startswith("Compilation failure: Ran out of memory")
  assert informative_line("x" * 1000) == "x" * 300
  assert lost_task(CPU_OOM) is None
  assert lost_task(COLLECTIVE) == "worker 1"


def read_all(paths, index):
  """120 batches of 8 by TensorFlow's reader."""

  @tf.function
  def run(iterator):
    total = 0
    for _ in tf.range(120):
      total += tf.reduce_sum(next(iterator)["input_ids"])
    return total

  parse = lambda serialized: parse_pretraining_batch(serialized, SPEC)  # noqa: E731
  return run(iter(training_batches(index, parse, seed=1, global_batch_size=8)))


@pytest.fixture
def files(tmp_path):
  """Settings with three record files of 300 records of 271 bytes each, and their index."""
  paths = [write_records(tmp_path / f"t-{i}", random_examples(300, seed=i)) for i in range(3)]
  settings = dataclasses.replace(tiny_settings(tmp_path, "run"), input_files=tuple(paths))
  return settings, build_record_index(paths)


def damage(path, byte):
  data = bytearray(pathlib.Path(path).read_bytes())
  data[byte] ^= 0xFF
  pathlib.Path(path).write_bytes(bytes(data))


def test_real_damage_is_found_by_reading_only_the_damaged_file(files, monkeypatch):
  settings, index = files
  damage(settings.input_files[2], 271 * 5 + 60)
  read = []
  whole = checks.read_records
  monkeypatch.setattr(checks, "read_records", lambda path: (read.append(path), whole(path))[1])
  with pytest.raises(UserError, match=r"t-2, record 5 \(byte 1355\): the checksum of the data .*=skip"):
    explained(lambda: read_all(settings.input_files, index), settings, index)
  assert read == [settings.input_files[2]]
  monkeypatch.setattr(checks, "_READ_AT_MOST", 1000)  # A corpus too large to be read for a message.
  with pytest.raises(UserError, match=r"damaged one at byte 1367 of \S*t-2\. .*--validate"):
    explained(lambda: read_all(settings.input_files, index), settings, index)
  assert len(read) == 1


def test_a_real_damaged_length_a_lost_file_and_a_changed_one(files):
  settings, index = files
  paths = settings.input_files
  original = pathlib.Path(paths[1]).read_bytes()
  damage(paths[1], 271 * 7 + 2)
  with pytest.raises(UserError, match=r"t-1, record 7 \(byte 1897\): the checksum of the length"):
    explained(lambda: read_all(paths, index), settings, index)
  pathlib.Path(paths[1]).write_bytes(original)
  alone = dataclasses.replace(settings, input_files=paths[:1])
  index_alone = build_record_index(paths[:1])
  pathlib.Path(paths[0]).write_bytes(original[: 271 * 100])
  with pytest.raises(UserError, match="other files than at the start"):
    explained(lambda: read_all(paths[:1], index_alone), alone, index_alone)
  pathlib.Path(paths[1]).unlink()
  with pytest.raises(UserError, match=r"t-1, which is gone"):
    explained(lambda: read_all(paths, index), settings, index)


@pytest.mark.parametrize("left", [250, 0])
def test_held_out_records_that_shrink_between_two_evaluations_are_named(files, left):
  settings, index = files
  paths = settings.input_files
  settings = dataclasses.replace(settings, input_files=paths[:1], eval_input_files=paths[1:])
  held_out = build_record_index(paths[1:])
  parse = lambda serialized: parse_pretraining_batch(serialized, SPEC)  # noqa: E731
  batches = evaluation_batches(held_out, parse, global_batch_size=100)
  assert len(list(batches)) == 6
  pathlib.Path(paths[1]).write_bytes(pathlib.Path(paths[1]).read_bytes()[: 271 * left])
  index = build_record_index(paths[:1])
  with pytest.raises(UserError, match=r"other files than at the start under \S*t-1 and"):
    explained(lambda: list(batches), settings, index)


def test_real_records_of_another_length_and_a_piece_beyond_the_vocabulary(files):
  settings, index = files
  example = tf.train.Example()
  example.features.feature["input_ids"].int64_list.value.extend([1, 2])
  for run in (
    lambda: parse_pretraining_batch(tf.constant([example.SerializeToString()]), SPEC),
    lambda: tf.gather(tf.zeros([4, 2]), tf.constant([[1, 2, 9]])),
  ):
    with pytest.raises(
      UserError, match=r"lengths and the vocabulary.*cannot be used \(.*--validate names it"
    ):
      explained(run, settings, index)


@pytest.mark.slow
def test_a_real_fault_of_the_program_and_real_want_of_memory_read_no_record(files, monkeypatch):
  settings, index = files
  reads = []
  monkeypatch.setattr(checks, "read_records", reads.append)
  monkeypatch.setattr(failures, "build_record_index", reads.append)
  with pytest.raises(ERRORS.InvalidArgumentError):
    explained(lambda: tf.raw_ops.Reshape(tensor=tf.ones([3]), shape=[4]), settings, index)
  with pytest.raises(UserError, match=r"devices' memory. Received: OOM when allocating tensor with shape"):
    explained(lambda: tf.zeros([10**7, 10**7]) + 1.0, settings, index)
  assert reads == []


def test_a_bucket_that_fails_during_the_search_is_the_cause(files, monkeypatch):
  settings, index = files

  def unreachable(path):
    raise OSError(5, "Could not connect to server", path)

  monkeypatch.setattr(checks.files, "exists", unreachable)
  error = ERRORS.DataLossError(None, None, "corrupted record at 7")
  with pytest.raises(UserError, match=r"storage .* must answer. Received: Could not connect"):
    explained(raising(error), settings, index)
