"""Figures from the TPU compiler, kept on disk so that an interrupted sweep goes on where it was."""

from collections.abc import Callable
import concurrent.futures
from concurrent.futures.process import BrokenProcessPool
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys

import albert_tf
from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.chips import Topology
from albert_tf.planning.collectives import all_reduces, waiting_seconds
from albert_tf.planning.estimate import StepShape, trainable_parameters
from albert_tf.planning.plan_search import ALL_CORES, ONE_CORE, TWO_DEPTHS, Figures
from albert_tf.planning.tpu_compiler import compile_hlo
from albert_tf.startup import load_tensorflow

# Layers compiled where the rest is by proportion; with rematerialisation more, for its loop to stay one.
SHALLOW_DEPTHS, SHALLOW_DEPTHS_WITH_REMAT = (3, 6), (6, 9)
# The sources a step is made of: with another one, kept figures are of another program.
_PLANNING = ("lowering.py", "replicas.py", "optimized_program.py", "collectives.py", "chips.py")
_SOURCES = ("modeling", "optim", "training/step.py", *(f"planning/{name}" for name in _PLANNING))
_VERSIONS = "import importlib.metadata as m; print(m.version('jax'), m.version('libtpu'))"


def compiler_versions(python: str = "") -> str:
  """Versions of jax and libtpu in an interpreter, without loading them.

  Raises:
    UserError: one of them is missing there, or `python` cannot be run.
  """
  interpreter = python or sys.executable
  try:
    done = subprocess.run(
      [interpreter, "-c", _VERSIONS], capture_output=True, text=True, timeout=120, check=False
    )
  except (OSError, subprocess.TimeoutExpired) as error:
    raise UserError(
      f"--compiler_python must be a Python interpreter. Received: {interpreter} ({error}). Give its path."
    ) from error
  if done.returncode:
    raise UserError(
      f"The TPU compiler needs jax and libtpu. Received: an interpreter without them, {interpreter}. Install "
      'albert-tf[tpu-compile] (pip install -e ".[tpu-compile]"), name an interpreter that has them with '
      "--compiler_python, or use --estimate_only."
    )
  return "jax {} libtpu {}".format(*done.stdout.split())


def _source_digest() -> str:
  root = pathlib.Path(albert_tf.__file__).parent
  digest = hashlib.sha256()
  for source in _SOURCES:
    path = root / source
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
      digest.update(file.read_bytes())
  return digest.hexdigest()


def can_be_shallow(config: AlbertConfig) -> bool:
  """Whether a model with fewer layers says what one with all costs: one group, and deeper than what is compiled."""
  return config.num_hidden_groups == 1 and config.num_hidden_layers > max(SHALLOW_DEPTHS_WITH_REMAT)


def by_depth(shallow: Figures, deep: Figures, *, depths: tuple[int, int], layers: int) -> Figures:
  """Figures of a model with `layers` layers: each costs what one costs between two depths that were compiled.

  x(L) = x(a) + (x(b) - x(a)) (L - a) / (b - a), for memory and for cycles.
  """
  steps = (layers - depths[0]) / (depths[1] - depths[0])

  def extend(a: float, b: float) -> float:
    return a + (b - a) * steps

  return Figures(
    source=deep.source + TWO_DEPTHS,
    required_bytes=int(extend(shallow.required_bytes, deep.required_bytes)),
    temporary_bytes=int(extend(shallow.temporary_bytes, deep.temporary_bytes)),
    cycles=extend(shallow.cycles, deep.cycles),
    compile_seconds=shallow.compile_seconds + deep.compile_seconds,
    refused=shallow.refused or deep.refused,
    loops_counted_once=deep.loops_counted_once,
    all_reduces=deep.all_reduces,
    all_reduce_bytes=int(extend(shallow.all_reduce_bytes, deep.all_reduce_bytes)),
    all_reduce_seconds=extend(shallow.all_reduce_seconds, deep.all_reduce_seconds),
    note=deep.note,
  )


def _lower(config: AlbertConfig, shape: StepShape, num_replicas: int, all_reduce_dtype: str) -> bytes:
  load_tensorflow()
  from albert_tf.optim.build import OptimizerConfig
  from albert_tf.planning.lowering import lower_train_step

  lowered = lower_train_step(
    config,
    per_core_batch_size=shape.per_core_batch_size,
    max_seq_length=shape.max_seq_length,
    max_predictions_per_seq=shape.max_predictions_per_seq,
    gradient_accumulation_steps=shape.gradient_accumulation_steps,
    num_replicas=num_replicas,
    mixed_precision=shape.mixed_precision,
    all_reduce_dtype=all_reduce_dtype,
    remat=shape.remat,
    optimizer_config=OptimizerConfig(name=shape.optimizer),
    encoder_options={
      "use_one_hot_embeddings": shape.use_one_hot_embeddings,
      "layer_loop": shape.layer_loop,
    },
  )
  return lowered.hlo


def _lower_in_child(
  config: AlbertConfig, shape: StepShape, num_replicas: int, all_reduce_dtype: str
) -> bytes:
  """TensorFlow keeps the variables of a lowered step for good: 2.7 GB of xxlarge, for every program of a sweep."""
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
    try:
      return pool.submit(_lower, config, shape, num_replicas, all_reduce_dtype).result()
    except BrokenProcessPool as error:
      raise UserError(
        f"Lowering takes memory for the weights and moments, {12 * trainable_parameters(config) / 2**30:.1f} GiB here, "
        "and as much again. Received: a process that was ended from outside. Free some, or use --estimate_only."
      ) from error


class StepCompiler:
  """Compiles steps of one model for one slice: the program of all its cores, sums over them included.

  Where the compiler refuses that for another reason than memory, the program of one core alone is compiled.

  Args:
    config: the architecture.
    topology: the slice.
    python: an interpreter with jax and libtpu; default: this one.
    cache_dir: folder of figures from earlier calls; empty for none.
    cached_only: compile nothing; where no figures are kept, there are none.
    all_reduce_dtype: type in which gradients are summed, "float32" or "bfloat16".
    shallow: compile two models with few layers and extend, where `can_be_shallow`: much faster, within about 2%.
    say: takes a line of progress.

  Raises:
    UserError: jax or libtpu is missing in that interpreter.
  """

  def __init__(
    self,
    config: AlbertConfig,
    topology: Topology,
    *,
    python: str = "",
    cache_dir: str = "",
    cached_only: bool = False,
    all_reduce_dtype: str = "float32",
    shallow: bool = False,
    say: Callable[[str], None] = lambda line: None,
  ):
    self.versions = compiler_versions(python)
    self._config, self._topology, self._python = config, topology, python
    self._cache_dir = os.path.expanduser(cache_dir)
    self._cached_only, self._all_reduce_dtype = cached_only, all_reduce_dtype
    self._shallow = shallow and can_be_shallow(config)
    self._say = say

  def __call__(self, shape: StepShape) -> Figures | None:
    if not self._shallow:
      return self._kept(self._config, shape)
    depths = SHALLOW_DEPTHS_WITH_REMAT if shape.remat else SHALLOW_DEPTHS
    found = [self._kept(self._config.replace(num_hidden_layers=depth), shape) for depth in depths]
    shallow, deep = found
    if shallow is None or deep is None:
      return None
    return by_depth(shallow, deep, depths=depths, layers=self._config.num_hidden_layers)

  def _kept(self, config: AlbertConfig, shape: StepShape) -> Figures | None:
    key = {
      "config": config.to_dict(),
      "shape": dataclasses.asdict(shape),
      "chip": self._topology.chip.name,
      "topology": self._topology.name,
      "all_reduce_dtype": self._all_reduce_dtype,
      "versions": self.versions,
      "source": _source_digest(),
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    path = os.path.join(self._cache_dir, f"{name}.json") if self._cache_dir else ""
    if path and files.exists(path):
      return Figures(**json.loads(files.read_bytes(path))["figures"])
    if self._cached_only:
      return None
    figures = self._compile(config, shape)
    if path:
      files.makedirs(self._cache_dir)
      with files.atomic_writer(path, "w") as stream:
        json.dump({**key, "figures": figures._asdict()}, stream, indent=1)
    return figures

  def _compile(self, config: AlbertConfig, shape: StepShape) -> Figures:
    cores = self._topology.num_cores
    self._say(
      f"compiling {config.num_hidden_layers} layers of width {config.hidden_size}, {shape.per_core_batch_size} "
      f"a core{', remat' if shape.remat else ''}, for {'the core' if cores == 1 else f'all {cores:,} cores'} of "
      f"{self._topology.name}"
    )
    try:
      return self._compile_for(cores, config, shape)
    except UserError as error:
      if cores == 1:
        raise
      self._say(f"all {cores:,} cores together do not compile ({error}); one core alone follows")
      return self._compile_for(1, config, shape)._replace(source=ONE_CORE, note=str(error))

  def _compile_for(self, cores: int, config: AlbertConfig, shape: StepShape) -> Figures:
    hlo = _lower_in_child(config, shape, cores, self._all_reduce_dtype)
    step = compile_hlo(hlo, self._topology.name, num_replicas=cores, python=self._python)
    sums = all_reduces(step.program)
    return Figures(
      source=ALL_CORES,
      required_bytes=step.required_bytes,
      temporary_bytes=step.temporary_bytes,
      cycles=float(step.estimated_cycles),
      compile_seconds=step.compile_seconds,
      refused=not step.fits,
      loops_counted_once=step.loops_of_unknown_length,
      all_reduces=len(sums),
      all_reduce_bytes=sum(each.num_bytes for each in sums),
      all_reduce_seconds=waiting_seconds(sums, self._topology),
    )
