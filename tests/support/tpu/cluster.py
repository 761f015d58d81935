"""What TensorFlow's C++ does with a TPU program, on CPUs: one copy of its operations for every replica.

`tpu.replicate` traces the computation once, as operations marked `_tpu_replicate`, between
`TPUReplicatedInput` and `TPUReplicatedOutput`. A TPU host compiles them and starts the program
on every core. Here every core's operations are laid into the graph, each core's on its own CPU device,
and the collectives between them become sums and slices on the host.
"""

from collections.abc import Callable, Sequence
import contextlib
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

_CLUSTER = "_tpu_replicate"  # Attribute of the operations of a program.
_COLLECTIVES = ("CrossReplicaSum", "AllToAll")
# Attributes that the copies do not have.
_MARKS = """
  _tpu_replicate _class _output_shapes _pivot_for_cluster _tpu_compilation_status _tpu_input_identity
  _tpu_output_identity
""".split()


class ReplicaCopies:
  """Lays the copies of a traced program into the graph that is being built.

  Args:
    program: the graph with the marked operations, as `tpu.replicate` left it.
    devices: of the replicas.
    host: device where collectives are computed.
  """

  def __init__(self, program: func_graph.FuncGraph, *, devices: Sequence[str], host: str):
    self._program = program
    self._devices = list(devices)
    self._host = host
    self._target = ops.get_default_graph()
    self._tensors: list[dict[Any, tf.Tensor]] = [{} for _ in devices]  # Of the program → its copy.
    self._operations: list[dict[tf.Operation, tf.Operation | None]] = [{} for _ in devices]
    self._special: dict[str, Callable[[tf.Operation], None]] = {
      "TPUReplicateMetadata": self._leave_out,
      "TPUCompilationResult": self._leave_out,
      "TPUReplicatedInput": self._take_input,
      "TPUReplicatedOutput": self._give_output,
      "CrossReplicaSum": self._cross_replica_sum,
      "AllToAll": self._all_to_all,
    }

  def lay(self) -> None:
    """Adds all copies, in the order in which the program was traced."""
    self._refuse_hidden_collectives()
    for function in self._program._functions.values():
      self._target._add_function_recursive(function)
    captured = set()
    for outside, inside in self._program.captures:
      captured.add(inside.op)
      for tensors in self._tensors:
        tensors[inside.ref()] = outside
    for operation in self._program.get_operations():
      if operation not in captured:
        self._special.get(operation.type, self._copy)(operation)

  def output(self, value: Any) -> Any:
    """What became of an output of `tpu.replicate`."""
    if isinstance(value, tf.Operation):
      return self._operations[0][value] or tf.no_op()
    return None if value is None else self._tensors[0][value.ref()]

  def _refuse_hidden_collectives(self) -> None:
    for function in self._program.as_graph_def().library.function:
      hidden = {node.op for node in function.node_def} & set(_COLLECTIVES)
      if hidden:
        raise NotImplementedError(
          f"{sorted(hidden)} within a loop or branch: {function.signature.name}"
        )

  def _leave_out(self, operation: tf.Operation) -> None:
    for operations in self._operations:
      operations[operation] = None

  def _take_input(self, operation: tf.Operation) -> None:
    self._leave_out(operation)
    for replica, tensors in enumerate(self._tensors):
      source = operation.inputs[replica if len(operation.inputs) > 1 else 0]
      tensors[operation.outputs[0].ref()] = tensors[source.ref()]

  def _give_output(self, operation: tf.Operation) -> None:
    self._leave_out(operation)
    for replica, output in enumerate(operation.outputs):
      for tensors in self._tensors:
        tensors[output.ref()] = self._tensors[replica][operation.inputs[0].ref()]

  def _cross_replica_sum(self, operation: tf.Operation) -> None:
    self._check_one_group(operation)
    with _on(self._host):
      total = tf.add_n(self._inputs(operation))
    self._scatter(operation, [total] * len(self._devices))

  def _all_to_all(self, operation: tf.Operation) -> None:
    self._check_one_group(operation)
    joined, cut = operation.get_attr("concat_dimension"), operation.get_attr("split_dimension")
    with _on(self._host):
      pieces = [tf.split(part, len(self._devices), axis=cut) for part in self._inputs(operation)]
      received = [tf.concat(list(parts), axis=joined) for parts in zip(*pieces, strict=True)]
    self._scatter(operation, received)

  def _check_one_group(self, operation: tf.Operation) -> None:
    groups = tf.get_static_value(operation.inputs[1])
    if groups is None or groups.shape != (1, len(self._devices)):
      raise NotImplementedError(f"{operation.name} among groups of replicas: {groups}")

  def _inputs(self, operation: tf.Operation) -> list[tf.Tensor]:
    return [tensors[operation.inputs[0].ref()] for tensors in self._tensors]

  def _scatter(self, operation: tf.Operation, values: Sequence[tf.Tensor]) -> None:
    for replica, (device, value) in enumerate(zip(self._devices, values, strict=True)):
      with _on(device):
        own = tf.identity(value)
      self._tensors[replica][operation.outputs[0].ref()] = own
      self._operations[replica][operation] = own.op

  def _copy(self, operation: tf.Operation) -> None:
    """One for every replica if it belongs to the program, else one for all."""
    if _CLUSTER in operation.node_def.attr:
      for replica, device in enumerate(self._devices):
        self._note(operation, self._created(operation, replica, device), [replica])
    else:
      self._note(operation, self._created(operation, 0, None), range(len(self._devices)))

  def _note(self, operation: tf.Operation, copy: tf.Operation, replicas: Sequence[int]) -> None:
    for replica in replicas:
      self._operations[replica][operation] = copy
      for old, new in zip(operation.outputs, copy.outputs, strict=True):
        self._tensors[replica][old.ref()] = new

  def _created(self, operation: tf.Operation, replica: int, device: str | None) -> tf.Operation:
    attributes = {key: value for key, value in operation.node_def.attr.items() if key not in _MARKS}
    before = [self._operations[replica][each] for each in operation.control_inputs]
    with _on(device), tf.control_dependencies([each for each in before if each is not None]):
      return self._target._create_op_internal(
        operation.type,
        [self._tensors[replica][each.ref()] for each in operation.inputs],
        [output.dtype for output in operation.outputs],
        name=f"replica_{replica}/{operation.name}" if device else operation.name,
        attrs=attributes,
        op_def=operation.op_def,
      )


@contextlib.contextmanager
def _on(device: str | None) -> Any:
  """Exactly there, whatever devices the surrounding code asks for; with None the placer chooses."""
  with tf.device(None), tf.device(device):
    yield
