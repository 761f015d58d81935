"""What every kind of export promises: ops that servers link, signatures, and the same answers on the other stack."""

from collections.abc import Callable
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support.serving.session_loader import SessionModel

from albert_tf.models.exports import export_saved_model
from albert_tf.serving.bare_loader import ops_of
from albert_tf.serving.settings import ExportSettings

KINDS = ("encoder", "fill_mask", "pair", "value", "squad_1.1", "squad_2.0", "choice", "tags")
TEXTS = {
  "text": ["The [MASK] is blue.", "Small birds (ﬁve) sing 12, all day é"],
  "text_pair": ["green grass", ""],
  "question": ["What is blue?", "Who sings?"],
  "context": ["The sky is BLUE and the grass is green while birds sing under old trees.", "Small İ birds"],
  "choices": [["the sky", "grass"], ["birds", "_ trees"]],
}


@pytest.fixture(scope="module")
def exports(exported: Callable[[str], Any]) -> dict[str, Any]:
  return {kind: exported(kind) for kind in KINDS}


def inputs_of(session: SessionModel) -> dict[str, np.ndarray]:
  names = session.signatures["serving_default"].inputs
  encode = np.vectorize(lambda text: text.encode(), otypes=[object])
  return {name: encode(np.array(TEXTS[name], object)) for name in names}


def test_only_ops_that_servers_link(exports: dict[str, Any]) -> None:
  used = set().union(*(ops_of(export.path) for export in exports.values()))
  program = (
    "import sys; from tensorflow.python.framework import op_def_registry as registry; import tensorflow;"
    "print(*[op for op in sys.argv[1:] if registry.get(op) is None])"
  )
  command = [sys.executable, "-c", program, *sorted(used)]
  done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
  assert set(done.stdout.split()) == {"SentencepieceOp", "SentencepieceTokenizeOp"}
  # They would call back into this process, or depend on a hash table's initialisation or the locale.
  assert not used & {"PyFunc", "EagerPyFunc", "StringLower", "HashTableV2", "MutableHashTableV2"}


def test_every_kind_has_the_signatures_clients_expect(exports: dict[str, Any]) -> None:
  for kind, export in exports.items():
    session = export.session
    assert {"serving_default", "tokens", "examples"} <= set(session.signatures), kind
    for name, signature in session.signatures.items():
      for spec in (*signature.inputs.values(), *signature.outputs.values()):
        if not name.startswith("__"):
          assert spec.tensor_shape.dim[0].size == -1, (kind, name)  # Servers split outputs at the batch.
    empty = {name: array[:0] for name, array in inputs_of(session).items()}
    for name, array in session.run("serving_default", empty).items():
      assert len(array) == 0, (kind, name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fill_mask", "squad_1.1", "squad_2.0", "choice", "tags"])
def test_rows_of_a_fixed_length_give_the_same_answers(
  exports: dict[str, Any], kind: str, tmp_path: pathlib.Path
) -> None:
  session = exports[kind].session
  padded = SessionModel(
    export_saved_model(
      model=exports[kind].kind,
      init_checkpoint=exports[kind].source,
      output_dir=str(tmp_path),
      settings=ExportSettings(max_windows=12, pad_to_max_length=True),
    )
  )
  assert padded.signatures["tokens"].inputs["input_ids"].tensor_shape.dim[-1].size > 0
  expected = session.run("serving_default", inputs_of(session))
  for name, array in padded.run("serving_default", inputs_of(session)).items():
    if array.dtype.kind == "f":
      np.testing.assert_allclose(array, expected[name], atol=1e-5, err_msg=name)
    else:
      np.testing.assert_array_equal(array, expected[name], err_msg=name)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from session_loader import SessionModel
for directory in sys.argv[2:]:
  with np.load(f"{directory}/inputs.npz", allow_pickle=True) as arrays:
    outputs = SessionModel(directory).run("serving_default", dict(arrays))
  np.savez(f"{directory}/outputs.npz", **outputs)
"""


@pytest.mark.slow
def test_exports_run_on_the_other_stack(exports: dict[str, Any], repository_dir: pathlib.Path) -> None:
  own = pathlib.Path(sys.prefix)
  other = repository_dir / (".venv" if own.name == ".venv-addons" else ".venv-addons") / "bin/python"
  if not other.exists():
    pytest.skip(f"needs the other stack's environment, {other}")
  expected = {}
  for kind, export in exports.items():
    inputs = inputs_of(export.session)
    np.savez(f"{export.path}/inputs.npz", **inputs)
    expected[kind] = export.session.run("serving_default", inputs)
  support = str(repository_dir / "tests/support/serving")
  command = [str(other), "-c", PROGRAM, support, *(export.path for export in exports.values())]
  subprocess.run(command, check=True, cwd=exports["encoder"].path, timeout=600)
  for kind, export in exports.items():
    with np.load(f"{export.path}/outputs.npz", allow_pickle=True) as outputs:
      for name, array in expected[kind].items():
        if array.dtype.kind == "f":
          np.testing.assert_allclose(outputs[name], array, atol=1e-5, err_msg=f"{kind} {name}")
        else:
          np.testing.assert_array_equal(outputs[name], array, err_msg=f"{kind} {name}")
