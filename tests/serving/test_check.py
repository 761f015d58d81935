"""The command that checks exports passes ours of every kind, and finds what is wrong with others."""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving import check as checks
from albert_tf.serving.bare_loader import Answer, Call, dump_calls, ops_of, parse_calls
from albert_tf.serving.check import CheckFailed, check_saved_model
from albert_tf.serving.golden import GOLDEN_NAME, read_golden, write_golden
from albert_tf.serving.saved_model import EXTRA_DIR

CHECKS = [
  "layout",
  "loads without this project",
  "ops",
  "golden outputs",
  "batch independence",
  "odd text",
]
SLOW = ["encoder", "fill_mask", "value", "squad_1.1", "squad_2.0", "choice", "tags"]


def other_python(repository_dir: pathlib.Path) -> str | None:
  own = pathlib.Path(sys.prefix).name
  python = repository_dir / (".venv" if own == ".venv-addons" else ".venv-addons") / "bin/python"
  return str(python) if python.exists() else None


@pytest.mark.parametrize("key", ["pair", *(pytest.param(key, marks=pytest.mark.slow) for key in SLOW)])
def test_every_kind_passes(exported, key: str) -> None:
  results = check_saved_model(exported(key).path)
  assert [result.name for result in results] == CHECKS
  assert all(result.passed for result in results), results
  assert results[2].detail.endswith("SentencepieceOp, SentencepieceTokenizeOp")
  # Ops that would depend on a table's initialisation, or on the locale.
  assert not ops_of(exported(key).path) & {"StringLower", "HashTableV2", "MutableHashTableV2"}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["squad_1.1", "squad_2.0", "tags"])
def test_an_export_passes_on_the_other_stack_too(exported, repository_dir, key: str) -> None:
  python = other_python(repository_dir)
  if python is None:
    pytest.skip("the other stack's environment is not here")
  found = check_saved_model(exported(key).path, pythons=[python])[-1]
  assert (found.passed, tf.__version__ in found.detail) == (True, False), found


@pytest.mark.slow
def test_the_command_says_what_is_wrong(
  exported, repository_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  wrong = tmp_path / "model"  # Not a number.
  shutil.copytree(exported("fill_mask").path, wrong)
  golden = wrong / EXTRA_DIR / GOLDEN_NAME
  calls, answers = parse_calls(golden.read_bytes())
  changed = {k: a + np.float32(1e-3) if a.dtype.kind == "f" else a for k, a in answers[0].outputs.items()}
  golden.write_bytes(dump_calls(calls, [Answer(changed), *answers[1:]]))
  program = repository_dir / "tpu_scripts/check_saved_model.py"
  command = [sys.executable, program, f"--saved_model={wrong}"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=280)
  assert done.returncode == 1, done.stderr
  failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
  assert "'model'" in failed[0]
  assert "differs by" in failed[1]
  assert len(failed) == 2


def test_a_model_that_does_not_load_fails(tmp_path: pathlib.Path, exported) -> None:
  broken = tmp_path / "1"
  shutil.copytree(exported("fill_mask").path, broken)
  shutil.rmtree(broken / "variables")
  assert [result.passed for result in check_saved_model(str(broken))] == [True, False]
  with pytest.raises(UserError, match="which is neither"):
    check_saved_model(str(tmp_path / "nowhere"))


def test_ops_of_python_and_of_other_libraries_are_found(tmp_path: pathlib.Path) -> None:
  class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def call(self, x):
      return {"y": tf.reshape(tf.numpy_function(lambda a: a, [x], tf.float32), [-1])}

  tf.saved_model.save(Module(), str(tmp_path / "1"), signatures={"serving_default": Module().call})
  with pytest.raises(CheckFailed, match="PyFunc"):
    checks.check_ops(sorted(ops_of(str(tmp_path / "1"))), [])
  with pytest.raises(CheckFailed, match="does not link: RegexSplitWithOffsets"):
    checks.check_ops(["MatMul"], ["RegexSplitWithOffsets", "SentencepieceOp"])


def test_rows_that_depend_on_others_are_found() -> None:
  call = Call("s", {"x": np.zeros([2, 3], np.int32)})
  batch = Answer({"y": np.array([[1.0, 9.0], [2.0, 9.0]], np.float32)})
  alone = [Answer({"y": np.array([[value]], np.float32)}) for value in (1.0, 2.0)]
  assert "2 rows" in checks.check_batches([call], [batch], alone)  # Padding may differ.
  with pytest.raises(CheckFailed, match="row 1 in a batch and alone: y differs by 1"):
    checks.check_batches([call], [batch], [alone[0], alone[0]])


def test_equal_scores_may_change_places() -> None:
  scores = np.array([[3.0, 1.0, 1.0 + 1e-7, 0.0]], np.float32)
  call = Call("s", {"x": np.zeros([1, 1], np.int32)})

  def answer(*ends: int) -> list[Answer]:
    return [Answer({"ends": np.array([ends], np.int32), "scores": scores})]

  assert checks.compare([call], answer(1, 3, 2, 4), answer(1, 2, 3, 4)) == 0
  with pytest.raises(CheckFailed, match=r"ends is .*2.* instead of .*1"):
    checks.compare([call], answer(2, 1, 3, 4), answer(1, 2, 3, 4))


def test_golden_outputs_come_from_python_not_from_the_graph(exported, tmp_path: pathlib.Path) -> None:
  directory = str(tmp_path / "1")
  shutil.copytree(exported("value").path, directory)
  recorded = read_golden(directory)
  functions = {
    "serving_default": lambda text: {"value": tf.zeros(tf.shape(text)[0])},
    "tokens": lambda input_ids, **rest: {"value": tf.zeros(tf.shape(input_ids)[0])},
  }
  write_golden(directory, functions)
  calls, answers = read_golden(directory)
  with pytest.raises(CheckFailed, match="differs by"):
    checks.check_golden(calls, recorded[1], answers)
