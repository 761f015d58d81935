"""One function behind every way to place replicas."""

from collections.abc import Callable, Mapping
import dataclasses
import json
import os
import zlib

import tensorflow as tf

from albert_tf import tpu_host
from albert_tf.errors import UserError
from albert_tf.pipelines.pretraining import HostShard
from albert_tf.training import tpu_hosts, tpu_probe

DISTRIBUTIONS = ("tpu", "mirrored", "multi_worker", "one_device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistributionConfig:
  """Where the replicas run.

  Attributes:
    tpu: what `TPUClusterResolver` takes: "local", a name, or `grpc://host:port`, with commas between the hosts of
      a slice; empty for none.
    tpu_zone, gcp_project: only for a TPU named from another zone or project.
    distribution: one of `DISTRIBUTIONS`; empty: `tpu` if named, `multi_worker` if TF_CONFIG names several
      workers, else all GPUs if there is more than one, else one device.
    num_virtual_devices: splits the CPU into this many logical devices, one replica each; for tests.
  """

  tpu: str = ""
  tpu_zone: str = ""
  gcp_project: str = ""
  distribution: str = ""
  num_virtual_devices: int = 1

  def __post_init__(self) -> None:
    if self.distribution and self.distribution not in DISTRIBUTIONS:
      raise UserError(
        f"distribution must be one of {', '.join(DISTRIBUTIONS)}. Received: {self.distribution!r}."
      )
    if self.distribution == "tpu" and not self.tpu:
      raise UserError(
        "--distribution=tpu needs to know the TPU. Received: an empty --tpu. Use --tpu=local on a TPU VM."
      )
    if self.tpu and self.distribution not in ("", "tpu"):
      raise UserError(
        f"--tpu and --distribution={self.distribution} exclude each other. Received: --tpu={self.tpu}. Drop one."
      )
    if self.num_virtual_devices < 1:
      raise UserError(f"num_virtual_devices must be at least 1. Received: {self.num_virtual_devices}.")


def _several_workers() -> bool:
  cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
  return sum(len(cluster.get(job, ())) for job in ("chief", "worker")) > 1


def _tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
  tpu_probe.probe_tpu(config)
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
      tpu=config.tpu, zone=config.tpu_zone or None, project=config.gcp_project or None
    )
    if config.tpu != "local":
      tpu_hosts.check_hosts(resolver.cluster_spec())
      tf.config.experimental_connect_to_cluster(resolver)
      tpu_hosts.watch_hosts(resolver.cluster_spec())
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
  except Exception as error:  # The resolver and the runtime raise many types, none of them documented.
    raise tpu_host.unreachable(config.tpu, str(error) or type(error).__name__) from error


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
  """The strategy that `config` asks for. Call it before anything else touches a device.

  Raises:
    UserError: the TPU cannot be reached, or a device was used before.
  """
  if config.num_virtual_devices > 1:
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * config.num_virtual_devices
    try:
      tf.config.set_logical_device_configuration(cpu, logical)
    except RuntimeError as error:
      raise UserError(
        "num_virtual_devices must be set before TensorFlow first uses the CPU. Received: "
        f"{config.num_virtual_devices}, too late. Make the strategy first."
      ) from error
  if config.tpu:
    return _tpu_strategy(config)
  if config.distribution == "multi_worker" or (not config.distribution and _several_workers()):
    return tf.distribute.MultiWorkerMirroredStrategy()
  gpus = tf.config.list_logical_devices("GPU")
  devices = gpus or tf.config.list_logical_devices("CPU")
  if config.distribution == "mirrored" or (not config.distribution and len(devices) > 1):
    return tf.distribute.MirroredStrategy([device.name for device in devices])
  return tf.distribute.OneDeviceStrategy(devices[0].name)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
  """Whether this process writes the run directory."""
  resolver = strategy.cluster_resolver
  if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return True
  return resolver.task_type in (None, "chief") or (
    resolver.task_type == "worker"
    and not resolver.cluster_spec().as_dict().get("chief")
    and resolver.task_id == 0
  )


def host_shard(strategy: tf.distribute.Strategy, context: tf.distribute.InputContext) -> HostShard:
  """The part of every global batch that the input pipeline of `context` feeds."""
  return HostShard(
    num_replicas=strategy.num_replicas_in_sync,
    num_hosts=context.num_input_pipelines,
    host=context.input_pipeline_id,
  )


class Consensus:
  """What the processes of a run decide together, so that none waits for one that has left.

  Args:
    strategy: of the run. With one process, its own word is the decision.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self._several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def total(flag: tf.Tensor) -> tf.Tensor:
      return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(flag))

    def sum_flags(flag: tf.Tensor) -> tf.Tensor:
      return strategy.experimental_local_results(strategy.run(total, args=(flag,)))[0]

    def first(values: tf.Tensor) -> tf.Tensor:
      context = tf.distribute.get_replica_context()
      own = tf.where(tf.equal(context.replica_id_in_sync_group, 0), values, tf.zeros_like(values))
      return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    def take_first(values: tf.Tensor) -> tf.Tensor:
      return strategy.experimental_local_results(strategy.run(first, args=(values,)))[0]

    self._sum = tf.function(sum_flags, autograph=False)
    self._first = tf.function(take_first, autograph=False)
    self._replicas = strategy.num_replicas_in_sync

  def _total(self, value: float) -> float:
    return float(self._sum(tf.constant(value, tf.float64)))

  def any(self, flag: bool) -> bool:
    """Whether some process says so. Every process must call it, equally often."""
    return self._total(float(flag)) > 0 if self._several else flag

  def same(self, text: str) -> bool:
    """Whether all processes call it with the same text."""
    if not self._several:
      return True
    code = float(zlib.crc32(text.encode()))
    return not self.any(self._total(code) != code * self._replicas)

  def of_chief(self, values: Mapping[str, float]) -> dict[str, float]:
    """The chief's values, whatever another process has of them. Every process must name the same ones."""
    if not self._several or not values:
      return dict(values)
    numbers = self._first(tf.constant([float(value) for value in values.values()], tf.float64))
    return dict(zip(values, numbers.numpy().tolist(), strict=True))

  def on_chief(self, chief: bool, action: Callable[[], None]) -> None:
    """Runs `action` on the chief alone; its refusal ends the other processes as well.

    Raises:
      UserError: the chief's own error there, and elsewhere a word that it refused.
    """
    refusal = None
    if chief:
      try:
        action()
      except UserError as error:
        refusal = error
    if self.any(refusal is not None):
      raise refusal or UserError(
        "The workers of a run go on together. Received: a refusal of the chief (worker 0). Its message says what to do."
      )
