"""Many replicas without their devices: sums over them as XLA's own collectives, for a program that is only compiled."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # No public name: TPUs know them as CrossReplicaSum.


class _Replica(tf.distribute.ReplicaContext):
  """What a step sees of its replica: any one of all, since they run one program."""

  def __init__(self, num_replicas: int):
    super().__init__(tf.distribute.get_strategy(), gen_xla_ops.xla_replica_id())
    self._num_replicas = num_replicas

  @property
  def num_replicas_in_sync(self) -> int:
    return self._num_replicas

  def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
    """One all-reduce a tensor, as TPUStrategy makes it; which are sent together is the compiler's choice."""
    assert reduce_op == tf.distribute.ReduceOp.SUM
    group = tf.constant([list(range(self._num_replicas))])
    return tf.nest.map_structure(
      lambda x: gen_xla_ops.xla_all_reduce(x, group, reduce_op="Add", mode="CrossReplica"), value
    )


class ReplicasToCompile(tf.distribute.OneDeviceStrategy):
  """A strategy that counts `num_replicas` replicas and can trace the program of one of them.

  Args:
    num_replicas: devices of the slice that the program is compiled for.
  """

  def __init__(self, num_replicas: int):
    super().__init__("/cpu:0")
    self._num_replicas = num_replicas

  @property
  def num_replicas_in_sync(self) -> int:
    return self._num_replicas

  def trace(self, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function` as one replica; within a `tf.function` only."""
    if self._num_replicas == 1:
      return function(*arguments)
    with _Replica(self._num_replicas):
      return function(*arguments)
