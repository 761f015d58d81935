"""What every kind of export promises: ops that servers link, signatures, and the same answers on the other stack."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from reference.session_loader import SessionModel
from reference.tiny_run import write_fine_tuned_run
from tensorflow.core.protobuf import saved_model_pb2

from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.serving import MODEL_KINDS, export_saved_model

TASKS = {
  "classifier": TaskSpec(kind="classification", name="c", label_names=("no", "yes"), pair=True),
  "question_answering": TaskSpec(
    kind="question_answering",
    name="q",
    squad_version="2.0",
    max_seq_length=24,
    max_query_length=8,
    doc_stride=6,
  ),
  "multiple_choice": TaskSpec(kind="multiple_choice", name="m"),
  "token_classification": TaskSpec(kind="token_classification", name="t", label_names=("O", "B")),
}
TEXTS = {
  "text": ["The [MASK] is blue.", "Small birds (ﬁve) sing 12, all day é"],
  "text_pair": ["green grass", ""],
  "question": ["What is blue?", "Who sings?"],
  "context": ["The sky is BLUE and the grass is green while birds sing under old trees.", "Small İ birds"],
  "choices": [["the sky", "grass"], ["birds", "_ trees"]],
}


@pytest.fixture(scope="module")
def exports(run_dir: pathlib.Path, config, tokenizer, tmp_path_factory) -> dict[str, str]:
  folder = tmp_path_factory.mktemp("kinds")
  paths = {}
  for kind in MODEL_KINDS:
    source = run_dir
    if kind in TASKS:
      source = folder / f"run_{kind}"
      write_fine_tuned_run(source, TASKS[kind], config, tokenizer)
    paths[kind] = export_saved_model(model=kind, init_checkpoint=str(source), output_dir=str(folder / kind))
  return paths


def inputs_of(session: SessionModel) -> dict[str, np.ndarray]:
  names = session.signatures["serving_default"].inputs
  encode = np.vectorize(lambda text: text.encode(), otypes=[object])
  return {name: encode(np.array(TEXTS[name], object)) for name in names}


def test_only_ops_that_servers_link(exports: dict[str, str]) -> None:
  used: set[str] = set()
  for directory in exports.values():
    proto = saved_model_pb2.SavedModel.FromString(pathlib.Path(directory, "saved_model.pb").read_bytes())
    for meta_graph in proto.meta_graphs:
      used |= {node.op for node in meta_graph.graph_def.node}
      used |= {node.op for function in meta_graph.graph_def.library.function for node in function.node_def}
      used -= {function.signature.name for function in meta_graph.graph_def.library.function}
  program = (
    "import sys; from tensorflow.python.framework import op_def_registry as registry; import tensorflow;"
    "print(*[op for op in sys.argv[1:] if registry.get(op) is None])"
  )
  command = [sys.executable, "-c", program, *sorted(used)]
  done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
  assert set(done.stdout.split()) == {"SentencepieceOp", "SentencepieceTokenizeOp"}
  # They would call back into this process, or depend on a hash table's initialisation or the locale.
  assert not used & {"PyFunc", "EagerPyFunc", "StringLower", "HashTableV2", "MutableHashTableV2"}


def test_every_kind_has_the_signatures_clients_expect(exports: dict[str, str]) -> None:
  for kind, directory in exports.items():
    session = SessionModel(directory)
    assert {"serving_default", "tokens", "examples"} <= set(session.signatures), kind
    for name, signature in session.signatures.items():
      for spec in (*signature.inputs.values(), *signature.outputs.values()):
        if not name.startswith("__"):
          assert spec.tensor_shape.dim[0].size == -1, (kind, name)  # Servers split outputs at the batch.
    empty = {name: array[:0] for name, array in inputs_of(session).items()}
    for name, array in session.run("serving_default", empty).items():
      assert len(array) == 0, (kind, name)


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
def test_exports_run_on_the_other_stack(exports: dict[str, str], repository_dir: pathlib.Path) -> None:
  own = pathlib.Path(sys.prefix)
  other = repository_dir / (".venv" if own.name == ".venv-addons" else ".venv-addons") / "bin/python"
  if not other.exists():
    pytest.skip(f"needs the other stack's environment, {other}")
  expected = {}
  for kind, directory in exports.items():
    session = SessionModel(directory)
    np.savez(f"{directory}/inputs.npz", **inputs_of(session))
    expected[kind] = session.run("serving_default", inputs_of(session))
  reference = str(repository_dir / "tests/reference")
  command = [str(other), "-c", PROGRAM, reference, *exports.values()]
  subprocess.run(command, check=True, cwd=exports["encoder"], timeout=600)
  for kind, directory in exports.items():
    with np.load(f"{directory}/outputs.npz", allow_pickle=True) as outputs:
      for name, array in expected[kind].items():
        if array.dtype.kind == "f":
          np.testing.assert_allclose(outputs[name], array, atol=1e-5, err_msg=f"{kind} {name}")
        else:
          np.testing.assert_array_equal(outputs[name], array, err_msg=f"{kind} {name}")
