"""Fixtures of all tests, and settings of the stacks before TensorFlow is imported."""

import gc
import os
import pathlib
import sys

import hypothesis  # noqa: F401  Before imports are frozen: its plugins look for who holds their generators.
import pytest

from albert_tf import tpu_host

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# As `load_tensorflow`, so that tests and commands compute the same.
if os.uname().machine == "x86_64":
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
tpu_host.prepare_import("")  # Tests run on the CPU, also on a TPU VM.

TESTS_DIR = pathlib.Path(__file__).parent
# Files and folders that touch what differs between the stacks (`albert_tf/compat.py`). Their tests are marked `stack`:
# CI runs them on every stack, all others on the default one.
STACK_TESTS = (
  "checkpoints/test_round_trips.py",
  "finetuning/test_fit.py",
  "finetuning/test_resumption.py",
  "fuzz/test_tokenizers.py",
  "modeling/test_attention.py",
  "modeling/test_keras_citizenship.py",
  "modeling/test_oracle.py",
  "keras_api/",
  "optim/",
  "pipelines/test_order.py",
  "serving/test_check.py",
  "serving/test_export.py",
  "tokenization/test_graph.py",
  "tpu/",
  "pretraining/test_distributed_runs.py",
  "pretraining/test_pretraining.py",
  "pretraining/test_step.py",
)
# For `from reference import …` (NumPy twins) and `from support import …`.
sys.path.insert(0, str(TESTS_DIR))


@pytest.fixture(scope="session")
def repository_dir() -> pathlib.Path:
  return TESTS_DIR.parent


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
  """The folder `../shared` with real text and vocabularies. Recorded outputs are in tests/goldens.

  Without the folder the test is skipped; where REQUIRE_SHARED=true, as in .ci/run of a CI, it fails.
  """
  path = TESTS_DIR.parent.parent / "shared"
  if not path.is_dir():
    message = "needs the folder of real text ../shared, which is not part of the repository"
    if os.environ.get("REQUIRE_SHARED") == "true":
      pytest.fail(message)
    pytest.skip(message)
  return path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """Runs the tests of a file in one process.

  All of tests/serving are in one, because they share exports, and all of tests/fuzz, because they share a child.
  """
  from xdist.scheduler import LoadFileScheduling

  class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
      path = super()._split_scope(nodeid)
      shared = [
        folder for folder in ("tests/serving", "tests/fuzz") if path.startswith(f"{folder}/")
      ]
      return shared[0] if shared else path

  return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # Before pytest leaves out what `-m` does not want.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  for item in items:
    if item.path.relative_to(TESTS_DIR).as_posix().startswith(STACK_TESTS):
      item.add_marker(pytest.mark.stack)


def pytest_collection_finish(session: pytest.Session) -> None:
  """Splits the CPU into four devices before any test starts TensorFlow's runtime, and calms garbage collection.

  Objects of imports are excluded from it, which would spend most of its time on them. A graph has many objects that
  live long: at Python's thresholds, the collector takes a seventh of the tests' time.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(20_000, 20, 20)
  if "tensorflow" in sys.modules:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    # It is on by default, except in a process whose first operation is in a graph: then tests for a
    # GPU that is not there would depend on the test before them.
    tf.config.set_soft_device_placement(True)


@pytest.fixture(scope="module", autouse=True)
def runs_draw_nothing():
  """Runs write an empty curves.png, because a picture takes a second."""
  reporter = sys.modules.get("albert_tf.pretraining.reporter")
  with pytest.MonkeyPatch.context() as patch:
    if reporter:
      from support.curves import draw_nothing

      patch.setattr(reporter, "draw_curves", draw_nothing)
    yield


@pytest.fixture(scope="session")
def mirrored_2():
  """MirroredStrategy on two logical CPU devices.

  One object for the whole session: on TensorFlow 2.15 a second strategy on the same devices numbers
  its collectives from the start again and fails with "Shape mismatch in the collective instance".
  """
  import tensorflow as tf

  return tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
