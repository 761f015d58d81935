"""The real `tf.distribute.TPUStrategy` on logical CPU devices: CPU:0 is the host, CPU:1… are its cores.

Everything on Python's side is TensorFlow's own: the resolver (of `local` and of `grpc://` addresses), the
strategy, its variables and replica contexts, `tpu.replicate`, the distributed datasets. Stood in for are what only
a TPU's host has: the list of its devices and their names, the initialisation, and the C++ that
turns a traced program into one that a core runs (`cluster.py`).
"""

import collections
from collections.abc import Callable
import functools
from typing import Any

import numpy as np
from support.tpu.cluster import ReplicaCopies
import tensorflow as tf
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.framework import func_graph
from tensorflow.python.tpu import tpu, tpu_system_metadata

from albert_tf.runs import distribution

_LOCAL_HOST = "/job:localhost/replica:0/task:0"


class TpuEmulator:
  """Makes TensorFlow's TPU entry points give emulated cores; one a process.

  Attributes:
    cores: of the TPU that the next strategy finds, on all hosts together.
    programs: the programs traced so far, as `tpu.replicate` left them.
  """

  def __init__(self, cores: int, *, expand: bool = True):
    """Call it before TensorFlow touches a device.

    Args:
      cores: of the largest TPU this process will see.
      expand: lay the replicas' copies into the graph. Without them the graph is what a TPU's host gets; it
        can be looked at, not run.
    """
    self.cores = cores
    self.programs: list[func_graph.FuncGraph] = []
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * (cores + 1)
    )
    resolver_class = tf.distribute.cluster_resolver.TPUClusterResolver
    resolver_class.get_tpu_system_metadata = lambda resolver: self._metadata(resolver)
    tf.tpu.experimental.initialize_tpu_system = lambda resolver=None: None
    distribution.probe_tpu = lambda config: (
      None
    )  # It would look for a real one, in a process of its own.
    _wrap_init(tpu_strategy.TPUStrategyV2, after=_place_on_cpus)
    if expand:
      tpu.replicate = functools.partial(self._replicate, tpu.replicate)

  def _metadata(self, resolver: Any) -> tpu_system_metadata.TPUSystemMetadata:
    """What a TPU says of itself: its cores by host."""
    workers = len(resolver.cluster_spec().as_dict().get("worker", []))
    hosts = [f"/job:worker/replica:0/task:{index}" for index in range(workers)] or [_LOCAL_HOST]
    per_host = self.cores // len(hosts)
    return tpu_system_metadata.TPUSystemMetadata(
      num_cores=self.cores,
      num_hosts=len(hosts),
      num_of_cores_per_host=per_host,
      topology=None,
      devices=[
        tf.config.LogicalDevice(f"{host}/device:TPU:{index}", "TPU")
        for host in hosts
        for index in range(per_host)
      ],
    )

  def _replicate(
    self, replicate: Callable[..., Any], computation: Any, inputs: Any = None, **options: Any
  ) -> Any:
    """`tpu.replicate` into a graph of its own, whose copies then take its place."""
    program = func_graph.FuncGraph("tpu_program")
    with program.as_default():
      outputs = replicate(computation, inputs, **options)
    self.programs.append(program)
    extended = tf.distribute.get_strategy().extended
    copies = ReplicaCopies(program, devices=extended._tpu_devices[:, 0], host=extended._host_device)
    copies.lay()
    return tf.nest.map_structure(copies.output, outputs, expand_composites=True)


def _wrap_init(kind: type, *, after: Callable[[Any], None]) -> None:
  init = kind.__init__

  @functools.wraps(init)
  def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
    init(self, *args, **kwargs)
    after(self)

  kind.__init__ = wrapped


def _place_on_cpus(strategy: Any) -> None:
  """TPU:i of a host becomes its CPU:i+1."""
  extended = strategy.extended
  by_host = collections.defaultdict(list)
  for [core] in extended._tpu_devices:
    host, _, index = core.rpartition("/device:TPU:")
    by_host[f"{host}/device:CPU:0"].append(f"{host}/device:CPU:{int(index) + 1}")
  extended._tpu_devices = np.array(
    [[core] for cores in by_host.values() for core in cores], dtype=object
  )
  extended._device_input_worker_devices = collections.OrderedDict(by_host)
  extended._host_input_worker_devices = collections.OrderedDict(
    (host, [host] * len(cores)) for host, cores in by_host.items()
  )
  extended._host_device = next(iter(by_host))
  strategy._enable_packed_variable_in_eager_mode = (
    False  # A packed variable is for the C++ to unpack.
  )
