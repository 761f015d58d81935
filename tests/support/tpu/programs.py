"""What a traced TPU program consists of, against the kernels that the TPU's XLA device has."""

from collections import Counter
from collections.abc import Iterable
import functools
import json
import pathlib
from typing import Any

import tensorflow as tf

_KERNELS = pathlib.Path(__file__).parents[2] / "goldens/xla_tpu_jit_kernels.json"
_CLUSTER = "_tpu_replicate"  # Attribute of the operations of a program.
# Of what `describe` returns: what a TPU would refuse.
FAULTS = ("no_kernel", "bad_inputs", "must_compile")
# What the bridge takes away before a program is compiled.
_FRAME = frozenset(
  {"TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput", "TPUCompilationResult"}
)


@functools.cache
def recorded_kernels() -> dict[str, list[dict[str, set[str]]]]:
  """Operation → its kernels, each as attribute → types, of device XLA_TPU_JIT in tensorflow-tpu 2.20."""
  recorded = json.loads(_KERNELS.read_text(encoding="utf-8"))
  types = [set(line.split()) for line in recorded["types"]]
  return {
    operation: [{name: types[number] for name, number in kernel.items()} for kernel in kernels]
    for operation, kernels in recorded["kernels"].items()
  }


def _used(program: Any) -> Iterable[Any]:
  """Nodes of the program and of the functions it calls."""
  graph = program.as_graph_def()
  yield from (node for node in graph.node if _CLUSTER in node.attr and node.op not in _FRAME)
  for function in graph.library.function:
    yield from function.node_def


def _types(node: Any) -> dict[str, str]:
  return {name: tf.as_dtype(value.type).name for name, value in node.attr.items() if value.type}


def _lacks_a_kernel(node: Any) -> bool:
  types = _types(node)
  kernels = recorded_kernels().get(node.op, [])
  return not any(
    all(types[name] in allowed for name, allowed in kernel.items() if name in types)
    for kernel in kernels
  )


def describe(program: Any) -> dict[str, Any]:
  """A program's faults and its size.

  Args:
    program: the FuncGraph that `tpu.replicate` was traced into.

  Returns:
    `no_kernel`: operations with their types that no kernel takes; `bad_inputs`: inputs of unknown shape or of a
    type that cannot go to a core; `must_compile`: functions marked to be compiled within the
    compiled program; `operations`, `variables`, `collectives` (with their number): what it is made of.
  """
  nodes = list(_used(program))
  inputs = [op for op in program.get_operations() if op.type == "TPUReplicatedInput"]
  values = [op.outputs[0] for op in inputs if op.outputs[0].dtype != tf.resource]
  collectives = [node for node in nodes if node.op in ("CrossReplicaSum", "AllToAll")]
  return {
    "no_kernel": sorted({_signature(node) for node in nodes if _lacks_a_kernel(node)}),
    "bad_inputs": [
      f"{value.name} {value.dtype.name} {value.shape}"
      for value in values
      if value.dtype == tf.string or not value.shape.is_fully_defined()
    ],
    "must_compile": sorted(set(_must_compile(program, nodes))),
    "operations": sorted({node.op for node in nodes}),
    "variables": len(inputs) - len(values),
    "collectives": Counter(map(_signature, collectives)),
  }


def _must_compile(program: Any, nodes: list[Any]) -> Iterable[str]:
  yield from (node.name for node in nodes if node.attr["_XlaMustCompile"].b)
  library = program.as_graph_def().library.function
  yield from (function.signature.name for function in library if function.attr["_XlaMustCompile"].b)


def _signature(node: Any) -> str:
  types = [f"{name}={type_name}" for name, type_name in _types(node).items()]
  return " ".join([node.op, *sorted(types)])
