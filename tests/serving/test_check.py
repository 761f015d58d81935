"""check_saved_model.py passes this project's exports of every kind, and finds errors in others."""

import pathlib
import shutil
import sys
import types

import numpy as np
import pytest
from support.commands.script_runs import run_command
from support.stacks import slow_by_default
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.serving import check as checks
from albert_tf.serving.check import CHECKS, Call, CheckFailed, check_saved_model, ops_of
from albert_tf.serving.export import recorded_calls, write_golden
from albert_tf.serving.signatures import base

SLOW = ["encoder", "fill_mask", "value", "squad_1.1", "squad_2.0", "choice", "tags"]


@pytest.mark.parametrize(
  "key",
  [
    pytest.param("pair", marks=slow_by_default),
    *(pytest.param(key, marks=pytest.mark.slow) for key in SLOW),
  ],
)
def test_every_kind_passes(exported, key: str) -> None:
  results = check_saved_model(exported(key).path)
  assert [result.name for result in results] == list(CHECKS)
  assert all(result.passed for result in results), results
  assert results[1].detail.endswith("SentencepieceOp, SentencepieceTokenizeOp")
  # Ops that would depend on a table's initialisation, or on the locale.
  assert not ops_of(exported(key).path) & {"StringLower", "HashTableV2", "MutableHashTableV2"}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["squad_1.1", "squad_2.0", "tags"])
def test_an_export_passes_on_the_other_stack_too(exported, repository_dir, key: str) -> None:
  own = pathlib.Path(sys.prefix).name
  python = repository_dir / (".venv" if own == ".venv-addons" else ".venv-addons") / "bin/python"
  if not python.exists():
    pytest.skip("the other stack's environment is not here")
  results = check_saved_model(exported(key).path, pythons=[str(python)])[len(CHECKS) :]
  assert all(result.passed for result in results), results
  assert tf.__version__ not in results[2].detail


@pytest.mark.slow
def test_the_command_says_what_is_wrong(
  exported, config: AlbertConfig, tmp_path: pathlib.Path
) -> None:
  """A folder whose name is no number, and golden outputs of another model."""
  wrong = tmp_path / "model"
  shutil.copytree(exported("value").path, wrong)

  def zeros(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"value": tf.zeros(tf.shape(next(iter(inputs.values())))[0])}

  specs = {"serving_default": base.strings("text"), "tokens": base.ids(*base.TOKEN_KEYS)}
  functions = {
    name: types.SimpleNamespace(tolerance=1e-5, input_signature=inputs, python_function=zeros)
    for name, inputs in specs.items()
  }
  write_golden(str(wrong), recorded_calls(functions, config))
  done = run_command("tpu_scripts/check_saved_model.py", f"--saved_model={wrong}")
  assert done.returncode == 1, done.stderr
  failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
  assert "'model'" in failed[0]
  assert "differs by" in failed[1]
  assert len(failed) == 2


@pytest.mark.slow
def test_a_model_that_does_not_load_fails(tmp_path: pathlib.Path, exported) -> None:
  broken = tmp_path / "1"
  shutil.copytree(exported("value").path, broken)
  shutil.rmtree(broken / "variables")
  assert [result.passed for result in check_saved_model(str(broken))] == [False]
  with pytest.raises(UserError, match=r"Received: .*export_saved_model\.py"):
    check_saved_model(str(tmp_path / "nowhere"))


def test_ops_of_python_and_of_other_libraries_are_found(tmp_path: pathlib.Path) -> None:
  class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def call(self, x):
      return {"y": tf.reshape(tf.numpy_function(lambda a: a, [x], tf.float32), [-1])}

  tf.saved_model.save(Module(), str(tmp_path / "1"), signatures={"serving_default": Module().call})
  export = types.SimpleNamespace(tolerance=1e-5, ops=ops_of(str(tmp_path / "1")), foreign_ops=set())
  with pytest.raises(CheckFailed, match="PyFunc"):
    checks.check_ops(export)
  foreign_ops = {"RegexSplitWithOffsets", "SentencepieceOp"}
  export = types.SimpleNamespace(tolerance=1e-5, ops={"MatMul"}, foreign_ops=foreign_ops)
  with pytest.raises(CheckFailed, match="'RegexSplitWithOffsets'"):
    checks.check_ops(export)


def test_rows_that_depend_on_others_are_found() -> None:
  def run(signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": inputs["x"] + len(inputs["x"])}

  call = Call("s", {"x": np.ones([2, 1], np.float32)}, {})
  export = types.SimpleNamespace(tolerance=1e-5, golden=[call], run=run)
  with pytest.raises(CheckFailed, match=r"row 0 .*y .* 5\.00e-01"):
    checks.check_batches(export)


def test_equal_scores_may_change_places() -> None:
  scores = np.array([[3.0, 1.0, 1.0 + 1e-7, 0.0]], np.float32)

  def outputs(*ends: int) -> dict[str, np.ndarray]:
    return {"ends": np.array([ends], np.int32), "scores": scores}

  assert checks.largest_difference("s", outputs(1, 3, 2, 4), outputs(1, 2, 3, 4), 1e-5) == 0
  with pytest.raises(CheckFailed, match=r"ends is .*2.* instead of .*1"):
    checks.largest_difference("s", outputs(2, 1, 3, 4), outputs(1, 2, 3, 4), 1e-5)


@pytest.mark.slow  # An export.
def test_warm_up_requests_are_of_every_signature(exported) -> None:
  prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
  from albert_tf.records import read_records
  from albert_tf.serving.export import BATCH_SIZES, WARMUP

  export, session = pathlib.Path(exported("pair").path), exported("pair").session
  seen = []
  for record in read_records(str(export / WARMUP)):
    request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
    name, rows = request.model_spec.signature_name, len(next(iter(inputs.values())))
    assert all(len(output) == rows for output in session.run(name, inputs).values())
    seen.append((name, rows))
  assert seen == [(name, size) for name in ("serving_default", "tokens") for size in BATCH_SIZES]
