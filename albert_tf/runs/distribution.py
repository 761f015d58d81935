"""Make the distribution strategy, and let the processes of a run decide together."""

from collections.abc import Iterator, Sequence
import contextlib
import glob
import os
import pathlib
import sys
import zlib

from absl import logging
import tensorflow as tf

from albert_tf import compat, json_files, tpu_host
from albert_tf.errors import UserError
from albert_tf.pipelines.batches import HostShard
from albert_tf.runs import slice_hosts
from albert_tf.runs.failures import telling_line
from albert_tf.runs.settings import DistributionConfig


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
  """The strategy that `config` asks for. Call it before anything else touches a device.

  Raises:
    UserError: the TPU cannot be reached, or XLA is missing.
  """
  if config.use_xla and not compat.HOST_XLA:
    raise UserError(
      "--use_xla needs a TensorFlow with XLA for this machine's CPU or GPU. Received: "
      "tensorflow-tpu, which has it for TPUs alone. Leave --use_xla out, or use the default stack."
    )
  if config.tpu:
    return _tpu_strategy(config)

  if not tf.config.list_physical_devices("GPU"):
    warn_of_idle_chips()
    if config.precision == "bfloat16":
      _warn_of_slow_bfloat16(config.use_xla)
  # First: the strategy must be made before the list of devices starts TensorFlow's runtime.
  if _several_workers():
    return tf.distribute.MultiWorkerMirroredStrategy()
  gpus = tf.config.list_logical_devices("GPU")
  if len(gpus) > 1:
    return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
  [device, *_] = gpus or tf.config.list_logical_devices("CPU")
  return tf.distribute.OneDeviceStrategy(device.name)


def _several_workers() -> bool:
  """Whether TF_CONFIG names several workers."""
  text = os.environ.get("TF_CONFIG") or "{}"
  config = json_files.parse(text, "TF_CONFIG", cluster=dict | None, task=dict | None)
  cluster = config.get("cluster") or {}
  json_files.check_fields(
    cluster, "The cluster of TF_CONFIG", chief=list | None, worker=list | None
  )
  chiefs = cluster.get("chief") or []
  workers = cluster.get("worker") or []
  return len(chiefs) + len(workers) > 1


def _tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
  probe_tpu(config)
  try:
    resolver, hosts = find_tpu(config)
    if hosts:
      tf.config.experimental_connect_to_cluster(resolver)
      slice_hosts.watch_hosts(hosts)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
  except Exception as error:  # The runtime, too, raises many types.
    reason = telling_line(str(error)) or type(error).__name__
    raise tpu_host.unreachable(config.tpu, reason) from error


def probe_tpu(config: DistributionConfig) -> None:
  """Raises `UserError` if TensorFlow has no TPU kernels or the machine has no chips."""
  if not compat.TPU_KERNELS:
    raise UserError(
      "--tpu needs a TensorFlow with kernels for TPUs, and PyPI's package `tensorflow` has none. "
      f"Received: --tpu={config.tpu} with TensorFlow {tf.__version__} of {sys.prefix}. Type\n"
      "    make install STACK=tpu\n"
      f"    .venv-tpu/bin/python tpu_scripts/doctor.py --tpu={config.tpu}\n"
      "and use that interpreter (on an image tpu-vm-tf-2.15.1 its own, see docs/tpu.md), or leave "
      "--tpu empty to use GPUs or the CPU."
    )
  if config.tpu == "local":
    tpu_host.check_chips()


def find_tpu(
  config: DistributionConfig,
) -> tuple[tf.distribute.cluster_resolver.TPUClusterResolver, Sequence[str]]:
  """Asks Google's API for the TPU, and its hosts for a connection.

  The resolver raises many undocumented types.

  Returns:
    The resolver, and the addresses of hosts elsewhere; none for `local`.
  """
  resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
    tpu=config.tpu, zone=config.tpu_zone or None, project=config.gcp_project or None
  )
  # The chips of this machine: nothing to connect to.
  if config.tpu == "local":
    return resolver, ()
  hosts = resolver.cluster_spec().as_dict().get("worker", ())
  slice_hosts.check_hosts(hosts)
  return resolver, hosts


def warn_of_idle_chips(dev: str = "/dev") -> None:
  """Says that this machine has a TPU or GPUs, which the run leaves alone."""
  chips = tpu_host.chips(dev)
  if chips:
    logging.warning(
      "This run takes the CPU, and leaves this machine's TPU (%s) alone. Give --tpu=local.",
      ", ".join(chips),
    )
  # Empty or -1 hides the cards on purpose.
  is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
  cards = sorted(glob.glob(f"{dev}/nvidia[0-9]*"))
  if cards and not is_hidden:
    logging.warning(
      "This run takes the CPU, as TensorFlow sees none of this machine's GPUs (%s). Install "
      "NVIDIA's libraries, pip install -e '.[gpu]' on the default stack; CUDA_VISIBLE_DEVICES=-1 "
      "takes the CPU on purpose.",
      ", ".join(cards),
    )


def _warn_of_slow_bfloat16(use_xla: bool) -> None:
  """Says which flag makes a step on this machine's CPU slow."""
  if not has_bfloat16():
    logging.warning(
      "This processor has no instructions for bfloat16: a step takes four times as long as in "
      "float32. Leave --mixed_precision out."
    )
  elif use_xla:
    logging.warning(
      "XLA computes bfloat16 on a CPU in float32: a step takes 1.6 times as long or more. Leave "
      "--use_xla out."
    )


def has_bfloat16() -> bool:
  """Whether the processor has instructions for bfloat16; true where the system does not tell."""
  try:
    return "bf16" in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    return True


def precision_policy(precision: str) -> str:
  """Keras' dtype policy for matrix products in `precision`.

  Weights, softmax, LayerNorm and losses stay float32.
  """
  if precision == "float32":
    return "float32"
  return "mixed_bfloat16"


def host_shard(strategy: tf.distribute.Strategy, context: tf.distribute.InputContext) -> HostShard:
  """The part of every global batch that the input pipeline of `context` feeds."""
  return HostShard(
    num_replicas=strategy.num_replicas_in_sync,
    num_hosts=context.num_input_pipelines,
    host=context.input_pipeline_id,
  )


def check_one_host(strategy: tf.distribute.Strategy) -> None:
  """Raises `UserError` for a strategy of several hosts, which only pretraining runs on."""
  hosts = set()
  # The default strategy has one device, and cannot name it.
  if strategy.num_replicas_in_sync > 1:
    hosts = {device.rpartition("/device:")[0] for device in strategy.extended.worker_devices}
  is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
  if len(hosts) > 1 or is_multi_worker:
    raise UserError(
      "Fine-tuning runs on all devices of one host. Received: a strategy of several hosts. Use one "
      "host, without TF_CONFIG."
    )


class Workers:
  """The processes of a run, which decide together, so that none waits for a process that has left.

  Attributes:
    is_chief: whether this process writes the files of the run.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy
    self._several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    # In a cluster without a chief it is the first worker; a strategy of one process is always it.
    self.is_chief = strategy.extended.should_checkpoint
    self._sum = tf.function(self._sum_over_replicas, autograph=False)

  def _sum_over_replicas(self, values: tf.Tensor, *, of_first: bool = False) -> tf.Tensor:
    """Sums the values of all replicas, or takes those of the first."""

    def on_replica(values: tf.Tensor) -> tf.Tensor:
      context = tf.distribute.get_replica_context()
      # An op of this replica: all_reduce asks for the device of what it sums.
      values = tf.identity(values)
      if of_first:  # The others add zeros.
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        values = tf.where(is_first, values, tf.zeros_like(values))
      return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    per_replica = self._strategy.run(on_replica, args=(values,))
    return self._strategy.experimental_local_results(per_replica)[0]

  def any(self, flag: bool) -> bool:
    """Whether `flag` is true on any process. All processes must call it."""
    # In one process there is nobody to ask: the loop does not wait for the device.
    if not self._several:
      return flag
    return float(self._sum(tf.constant(float(flag), tf.float64))) > 0

  def same(self, text: str) -> bool:
    """Whether all processes have the same text. All processes must call it."""
    if not self._several:
      return True
    # Replicas exchange numbers: a hash stands for the text.
    code = tf.constant(float(zlib.crc32(text.encode())), tf.float64)
    differs_from_chief = bool(self._sum(code, of_first=True) != code)
    return not self.any(differs_from_chief)

  @contextlib.contextmanager
  def all_fail_together(self) -> Iterator[None]:
    """After the body, a `UserError` of one process ends all of them. All must enter it."""
    refusal = None
    try:
      yield
    except UserError as error:
      refusal = error
    # Without this, the others would wait in their next collective operation for ever.
    if self.any(refusal is not None):
      raise refusal or UserError(
        "All workers of a run must pass its checks. Received: an error of another worker. Its "
        "message says what to do."
      )
