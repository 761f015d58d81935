"""The conformance command passes our exports, and finds what is wrong with others."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.conformance import graph_checks, probes
from albert_tf.serving.conformance.check import check_saved_model
from albert_tf.serving.conformance.compare import difference
from albert_tf.serving.conformance.golden import ANSWERS_NAME, EXTRA_DIR, read_golden, write_golden
from albert_tf.serving.conformance.results import CheckFailed, passed
from albert_tf.serving.conformance.samples import make_calls
from albert_tf.serving.conformance.signatures import read_signatures
from albert_tf.serving.conformance.tensor_file import (
  Answer,
  Call,
  read_answers,
  read_calls,
  write_answers,
  write_calls,
)  # fmt: skip

METHODS = {"gRPC Classify", "gRPC Regress", "REST classify", "REST regress"}


def other_python(repository_dir: pathlib.Path) -> str | None:
  own = pathlib.Path(sys.prefix).name
  python = repository_dir / (".venv" if own == ".venv-addons" else ".venv-addons") / "bin/python"
  return str(python) if python.exists() else None


def check(path: str, pythons: tuple[str, ...] = ()) -> dict[str, tuple[str, str]]:
  found = check_saved_model(path, pythons=pythons, say=lambda line: None)
  return {result.name: (result.status, result.detail) for result in found}


def expect_all(found: dict[str, tuple[str, str]], *, methods: set[str] = frozenset()) -> None:
  """Everything passed, but for methods that the export has not, and C where there is no compiler."""
  without = {name for name, (status, _) in found.items() if status == "n/a "}
  assert without == METHODS - methods
  wrong = {name: result for name, result in found.items() if result[0] not in ("PASS", "n/a ")}
  if not any(map(shutil.which, probes.COMPILERS)):
    assert wrong.pop("C API, no Python")[0] == "SKIP"
  assert wrong == {}
  assert len(found) >= 19


@pytest.mark.slow
def test_a_classifier_conforms(exported) -> None:
  expect_all(check(exported("pair").path), methods={"gRPC Classify", "REST classify"})


@pytest.mark.slow
def test_an_export_conforms_on_the_other_stack_too(exported, repository_dir) -> None:
  python = other_python(repository_dir)
  found = check(exported("squad_1.1").path, (python,) if python else ())
  expect_all(found)
  if python is None:
    pytest.skip("the rest passed; the other stack's environment is not here")
  status, detail = found[f"other runtime {python}"]
  assert (status, tf.__version__ in detail) == ("PASS", False)


@pytest.mark.slow
def test_the_command_says_what_is_wrong(
  exported, repository_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  wrong = tmp_path / "model"  # Not a number.
  shutil.copytree(exported("fill_mask").path, wrong)
  data = bytearray((wrong / EXTRA_DIR / ANSWERS_NAME).read_bytes())
  answers = read_answers(str(wrong / EXTRA_DIR / ANSWERS_NAME))
  assert len(answers) * 8 < len(data)
  changed = {k: a + np.float32(1e-3) if a.dtype.kind == "f" else a for k, a in answers[0].outputs.items()}
  write_answers(str(wrong / EXTRA_DIR / ANSWERS_NAME), [Answer(changed), *answers[1:]])
  program = repository_dir / "tpu_scripts/check_saved_model.py"
  report = tmp_path / "report.json"
  command = [sys.executable, program, f"--saved_model={wrong}", f"--output_json={report}"]
  environment = {**os.environ, "PATH": "", "CC": ""}  # No compiler.
  done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
  assert done.returncode == 1, done.stderr
  lines = {line[6:40].strip(): line for line in done.stdout.splitlines()}
  assert "'model'" in lines["layout"]
  assert "differs by" in lines["golden outputs"]
  assert "no C compiler" in lines["C API, no Python"]
  failed = {c["name"] for c in json.loads(report.read_text())["checks"] if c["status"] == "FAIL"}
  assert failed == {"layout", "golden outputs"}
  assert done.stdout.splitlines()[-1].endswith("2 FAIL, 1 SKIP")
  missing = subprocess.run(
    [*command[:2], "--saved_model=nowhere"], capture_output=True, text=True, timeout=200
  )
  assert (missing.returncode, "which is neither" in missing.stderr) == (2, True)
  assert "Traceback" not in missing.stderr


def test_a_model_that_does_not_load_fails(tmp_path: pathlib.Path, exported) -> None:
  broken = tmp_path / "1"
  shutil.copytree(exported("fill_mask").path, broken)
  shutil.rmtree(broken / "variables")
  found = check(str(broken))
  assert found["Session loader, bare process"][0] == "FAIL"
  assert set(found) == {"layout", "Session loader, bare process"}
  (broken / EXTRA_DIR / ANSWERS_NAME).write_bytes(b"ATF2\xff\xff")
  with pytest.raises(UserError, match="Golden outputs must be whole"):
    check(str(broken))
  with pytest.raises(UserError, match="which is neither"):
    check(str(tmp_path / "nowhere"))


def test_ops_of_python_and_of_other_libraries_are_found(tmp_path: pathlib.Path, exported) -> None:
  class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def call(self, x):
      return {"y": tf.reshape(tf.numpy_function(lambda a: a, [x], tf.float32), [-1])}

  tf.saved_model.save(Module(), str(tmp_path / "1"), signatures={"serving_default": Module().call})
  with pytest.raises(CheckFailed, match="PyFunc"):
    graph_checks.check_ops(str(tmp_path / "1"), [])
  with pytest.raises(CheckFailed, match="does not link: WordpieceTokenizeWithOffsets"):
    graph_checks.check_ops(exported("fill_mask").path, ["WordpieceTokenizeWithOffsets", "NormalizeUTF8"])
  assert "NormalizeUTF8" in graph_checks.check_ops(exported("fill_mask").path, ["NormalizeUTF8"])


def test_rows_that_depend_on_others_are_found() -> None:
  call = Call("s", {"x": np.zeros([2, 3], np.int32)}, ("y",))
  batch = Answer({"y": np.array([[1.0, 9.0], [2.0, 9.0]], np.float32)})
  alone = [Answer({"y": np.array([[value]], np.float32)}) for value in (1.0, 2.0)]
  assert "2 rows" in graph_checks.check_batches([call], [batch], alone)  # Padding may differ.
  with pytest.raises(CheckFailed, match="row 1 in a batch and alone: y differs by 1"):
    graph_checks.check_batches([call], [batch], [alone[0], Answer({"y": np.array([[1.0]], np.float32)})])
  with pytest.raises(CheckFailed, match="for 2 rows"):
    graph_checks.check_batches([call], [Answer({"y": np.float32(1)})], alone)


def test_golden_outputs_come_from_python_not_from_the_graph(exported, tmp_path: pathlib.Path) -> None:
  directory = str(tmp_path / "1")
  shutil.copytree(exported("value").path, directory)
  recorded = read_golden(directory)
  assert recorded is not None
  assert {call.signature for call in recorded[0]} == set(read_signatures(directory))
  assert any(call.num_rows == 0 for call in recorded[0])
  functions = {
    "serving_default": lambda text: {"value": tf.zeros(tf.shape(text)[0])},
    "tokens": lambda input_ids, **rest: {"value": tf.zeros(tf.shape(input_ids)[0])},
    "examples": lambda inputs: {"outputs": tf.zeros(tf.shape(inputs)[0])},
  }
  write_golden(directory, functions)
  calls, answers = read_golden(directory)
  with pytest.raises(CheckFailed, match="differs by"):
    graph_checks.check_golden(calls, recorded[1], answers)
  assert graph_checks.check_golden(calls, recorded[1], recorded[1])


@pytest.mark.parametrize(
  ("name", "array"),
  [
    ("strings", np.array([[b"", b"\x00\xff"], ["é".encode(), b"x" * 99]], object)),
    ("float32", np.float32([[1.5, np.inf]])),
    ("int64", np.array([], np.int64)),
    ("bool", np.array([True, False])),
    ("scalar", np.array(7, np.int32)),
  ],
)
def test_tensors_survive_the_file(tmp_path: pathlib.Path, name: str, array: np.ndarray) -> None:
  call = Call("sig", {name: array}, ("out",), {f"in:{name}": "a:0", "out:out": "b:1"})
  write_calls(str(tmp_path / "c"), [call])
  (read,) = read_calls(str(tmp_path / "c"))
  assert dataclasses.replace(read, inputs={}) == dataclasses.replace(call, inputs={}, outputs=["out"])
  np.testing.assert_array_equal(read.inputs[name], array)
  assert read.inputs[name].dtype == array.dtype
  write_answers(str(tmp_path / "a"), [Answer({name: array}), Answer({}, 3, "nö")])
  first, second = read_answers(str(tmp_path / "a"))
  np.testing.assert_array_equal(first.outputs[name], array)
  assert second == Answer({}, 3, "nö")


def test_differences_are_said() -> None:
  one = {"y": np.float32([1, 2])}
  assert difference(one, {"y": np.float32([1, 2.000001])}) == ""
  assert "differs by" in difference(one, {"y": np.float32([1, 2.1])})
  assert "shape" in difference(one, {"y": np.float32([1])})
  assert "instead of" in difference(one, {})
  assert "not finite" in difference({"y": np.float32([np.nan])}, {"y": np.float32([np.nan])})
  assert "y[0] is b'a'" in difference({"y": np.array([b"a"], object)}, {"y": np.array([b"b"], object)})
  assert passed([])
  assert make_calls({}) == []
