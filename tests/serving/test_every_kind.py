"""What every kind of export promises beside `test_check.py`: its signatures, and rows of a fixed length."""

from collections.abc import Callable
import pathlib
from typing import Any

import numpy as np
import pytest
from support.serving.session_loader import SessionModel

from albert_tf.models.exports import export_saved_model
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


def test_every_kind_has_the_signatures_clients_expect(exports: dict[str, Any]) -> None:
  for kind, export in exports.items():
    session = export.session
    assert {"serving_default", "tokens"} <= set(session.signatures), kind
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
