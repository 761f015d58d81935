"""The command that checks exports passes ours, and finds what is wrong with others."""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.records import TFRecordWriter
from albert_tf.serving import check as checks
from albert_tf.serving.bare_loader import Answer, Call, dump_calls, ops_of, parse_calls
from albert_tf.serving.check import CheckFailed, check_saved_model
from albert_tf.serving.golden import GOLDEN_NAME, difference, read_golden, write_golden
from albert_tf.serving.samples import make_calls
from albert_tf.serving.saved_model import EXTRA_DIR, read_signatures
from albert_tf.serving.warmup import WARMUP_NAME

CHECKS = [
  "layout", "Session loader, bare process", "op allow-list", "golden outputs", "batch independence", "odd text",
  "warm-up replay",
]  # fmt: skip


def other_python(repository_dir: pathlib.Path) -> str | None:
  own = pathlib.Path(sys.prefix).name
  python = repository_dir / (".venv" if own == ".venv-addons" else ".venv-addons") / "bin/python"
  return str(python) if python.exists() else None


def check(path: str, pythons: tuple[str, ...] = ()) -> dict[str, tuple[str, str]]:
  found = check_saved_model(path, pythons=pythons, say=lambda line: None)
  return {result.name: (result.status, result.detail) for result in found}


def test_a_classifier_passes(exported) -> None:
  found = check(exported("pair").path)
  assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(CHECKS, "PASS")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["encoder", "fill_mask", "value", "squad_2.0", "choice", "tags"])
def test_every_other_kind_passes(exported, key: str) -> None:
  found = check(exported(key).path)
  assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(CHECKS, "PASS")


@pytest.mark.slow
def test_an_export_passes_on_the_other_stack_too(exported, repository_dir) -> None:
  python = other_python(repository_dir)
  if python is None:
    pytest.skip("the other stack's environment is not here")
  found = check(exported("squad_1.1").path, (python,))
  assert list(found) == [*CHECKS, f"other runtime {python}"]
  status, detail = found[f"other runtime {python}"]
  assert (status, tf.__version__ in detail) == ("PASS", False)


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
  report = tmp_path / "report.json"
  command = [sys.executable, program, f"--saved_model={wrong}", f"--output_json={report}"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=280)
  assert done.returncode == 1, done.stderr
  lines = {line[6:40].strip(): line for line in done.stdout.splitlines()}
  assert "'model'" in lines["layout"]
  assert "differs by" in lines["golden outputs"]
  written = json.loads(report.read_text())
  assert [c["name"] for c in written["checks"]] == CHECKS
  assert {c["name"] for c in written["checks"] if c["status"] == "FAIL"} == {"layout", "golden outputs"}
  assert (written["passed"], written["versions"]["tensorflow"]) == (False, tf.__version__)
  assert done.stdout.splitlines()[-1] == "5 PASS, 2 FAIL, 0 SKIP"
  missing = subprocess.run(
    [*command[:2], "--saved_model=nowhere"], capture_output=True, text=True, timeout=200
  )
  assert (missing.returncode, "which is neither" in missing.stderr) == (2, True)
  assert "Traceback" not in missing.stderr


@pytest.mark.slow
def test_a_model_that_does_not_load_fails(tmp_path: pathlib.Path, exported) -> None:
  broken = tmp_path / "1"
  shutil.copytree(exported("fill_mask").path, broken)
  shutil.rmtree(broken / "variables")
  found = check(str(broken))
  assert found["Session loader, bare process"][0] == "FAIL"
  assert set(found) == {"layout", "Session loader, bare process"}
  (broken / EXTRA_DIR / GOLDEN_NAME).write_bytes(b"PK\xff\xff")
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
    checks.check_ops(sorted(ops_of(str(tmp_path / "1"))), [])
  with pytest.raises(CheckFailed, match="does not link: FastWordpieceTokenizeWithOffsets"):
    checks.check_ops(["MatMul"], ["FastWordpieceTokenizeWithOffsets", "SentencepieceOp"])
  assert "SentencepieceOp" in checks.check_ops(ops_of(exported("fill_mask").path), ["SentencepieceOp"])


def test_rows_that_depend_on_others_are_found() -> None:
  call = Call("s", {"x": np.zeros([2, 3], np.int32)})
  batch = Answer({"y": np.array([[1.0, 9.0], [2.0, 9.0]], np.float32)})
  alone = [Answer({"y": np.array([[value]], np.float32)}) for value in (1.0, 2.0)]
  assert "2 rows" in checks.check_batches([call], [batch], alone)  # Padding may differ.
  with pytest.raises(CheckFailed, match="row 1 in a batch and alone: y differs by 1"):
    checks.check_batches([call], [batch], [alone[0], Answer({"y": np.array([[1.0]], np.float32)})])
  with pytest.raises(CheckFailed, match="for 2 rows"):
    checks.check_batches([call], [Answer({"y": np.float32(1)})], alone)


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
    checks.check_golden(calls, recorded[1], answers)
  assert checks.check_golden(calls, recorded[1], recorded[1])


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
def test_tensors_survive_the_file(name: str, array: np.ndarray) -> None:
  calls = [Call("sig", {name: array}), Call("other", {"x": np.zeros([1])})]
  answers = [Answer({name: array}), Answer({}, "InvalidArgumentError: nö")]
  read, given = parse_calls(dump_calls(calls, answers))
  assert [call.signature for call in read] == ["sig", "other"]
  for found in (read[0].inputs[name], given[0].outputs[name]):
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
  assert given[1] == answers[1]
  assert parse_calls(dump_calls(calls))[1] == []


def test_the_same_answers_are_the_same_bytes() -> None:
  calls = [Call("sig", {"x": np.zeros([1])})]
  with zipfile.ZipFile(io.BytesIO(dump_calls(calls))) as archive:
    assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}  # No time of writing.


def test_differences_are_said() -> None:
  def said(one: object, other: object) -> str:
    return difference({"y": np.array(one)}, {"y": np.array(other)})[0]

  assert said(np.float32([1, 2]), np.float32([1, 2.000001])) == ""
  assert "differs by" in said(np.float32([1, 2]), np.float32([1, 2.1]))
  assert "float32 (2,) instead of float32 (1,)" in said(np.float32([1, 2]), np.float32([1]))
  assert "not finite" in said(np.float32([np.nan]), np.float32([np.nan]))
  assert "y[0] is b'a'" in said(np.array([b"a"], object), np.array([b"b"], object))
  assert "instead of []" in difference({"y": np.zeros(1)}, {})[0]
  assert make_calls({}) == []


@pytest.mark.slow
def test_damaged_warm_up_requests_fail_their_check_alone(exported, tmp_path: pathlib.Path) -> None:
  shutil.copytree(exported("pair").path, tmp_path / "1")
  with open(tmp_path / "1" / EXTRA_DIR / WARMUP_NAME, "wb") as stream:
    TFRecordWriter(stream).write(b"no PredictionLog")
  found = check(str(tmp_path / "1"))
  assert [name for name, (status, _) in found.items() if status != "PASS"] == ["warm-up replay"]
  assert found["warm-up replay"][0] == "FAIL"
  assert f"{WARMUP_NAME} cannot be read" in found["warm-up replay"][1]


def test_warm_up_requests_are_judged() -> None:
  call, ok = Call("s", {"x": np.zeros([1])}), Answer({"y": np.ones([1], np.float32)})
  assert checks.check_warmup([call, call], [ok, ok]) == "2 requests of s"
  with pytest.raises(checks.CannotCheck, match=r"albert-tf\[serving\]"):
    checks.check_warmup(None, [])  # Nobody can read them without the messages' package.
  with pytest.raises(checks.CannotCheck, match="holds no tf_serving_warmup_requests"):
    checks.check_warmup([], [])
  with pytest.raises(CheckFailed, match="1001 records; servers take 1000"):
    checks.check_warmup([call] * 1001, [ok] * 1001)
  for bad in (Answer({}, "InvalidArgumentError: no"), Answer({"y": np.float32([np.nan])})):
    with pytest.raises(CheckFailed, match=r"no|not finite"):
      checks.check_warmup([call], [bad])
