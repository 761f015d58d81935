"""A step's figures from the TPU compiler, kept on disk so that an interrupted sweep goes on where it was."""

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
from typing import NamedTuple

import albert_tf
from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.chips import Topology
from albert_tf.planning.compiled_program import all_reduces, waiting_seconds
from albert_tf.planning.estimate import StepShape, trainable_parameters
from albert_tf.planning.tpu_compiler import compile_hlo
from albert_tf.startup import load_tensorflow

ALL_CORES, ONE_CORE, FORMULA = "compiler, all cores", "compiler, one core", "formula"
TWO_DEPTHS = ", two depths"  # After either of the first two.
# Layers compiled where the rest is by proportion; with rematerialisation more, for its loop to stay one.
_DEPTHS, _DEPTHS_WITH_REMAT = (3, 6), (6, 9)
# The sources a step is made of: with another one, kept figures are of another program.
_PLANNING = ("lowering", "program_text", "compiled_program", "bundles", "final_schedule", "chips")
_SOURCES = ("modeling", "optim", "training/step.py", *(f"planning/{name}.py" for name in _PLANNING))
_VERSIONS = "import importlib.metadata as m; print(m.version('jax'), m.version('libtpu'))"


class Figures(NamedTuple):
  """One core's step."""

  # ALL_CORES, ONE_CORE or FORMULA; with TWO_DEPTHS a few layers were compiled, the rest by proportion.
  source: str
  required_bytes: int  # Of the whole step: weights, moments, batch, temporaries.
  temporary_bytes: int  # Activations, gradients and scratch; 0 where the compiler did not say.
  cycles: (
    float  # Of the core's clock, by the final schedule where there is one, without waiting for other cores.
  )
  compile_seconds: float = 0.0
  refused: bool = False  # By the compiler, for want of memory.
  loops_counted_once: int = 0  # Loops in `cycles` whose number of runs is not known.
  all_reduces: int = 0  # Sums over all cores in the compiled program; 0 in that of one core.
  all_reduce_bytes: int = 0  # That they sum, on one core.
  all_reduce_seconds: float = 0.0  # That a core waits for them with nothing to compute.
  estimated_cycles: float = 0.0  # By the compiler before its final schedule; 0 by formula.
  memory_cycles: float = 0.0  # That HBM alone needs, by the final schedule; 0 where there is none.
  note: str = ""  # Why all cores together were not compiled.


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


def depths_to_compile(config: AlbertConfig, *, remat: bool) -> tuple[int, int] | None:
  """Two depths that say what all layers cost; None where that is no less to compile than the model itself."""
  depths = _DEPTHS_WITH_REMAT if remat else _DEPTHS
  return depths if config.num_hidden_groups == 1 and sum(depths) < config.num_hidden_layers else None


def by_depth(shallow: Figures, deep: Figures, *, depths: tuple[int, int], layers: int) -> Figures:
  """Figures of `layers` layers: each costs what one costs between two depths a and b that were compiled.

  x(L) = x(a) + (x(b) - x(a)) (L - a) / (b - a), for memory and for cycles.
  """
  steps = (layers - depths[0]) / (depths[1] - depths[0])

  def extend(name: str) -> float:
    a, b = getattr(shallow, name), getattr(deep, name)
    return a + (b - a) * steps

  return deep._replace(
    source=deep.source + TWO_DEPTHS,
    compile_seconds=shallow.compile_seconds + deep.compile_seconds,
    refused=shallow.refused or deep.refused,
    cycles=extend("cycles"),
    estimated_cycles=extend("estimated_cycles"),
    memory_cycles=extend("memory_cycles"),
    all_reduce_seconds=extend("all_reduce_seconds"),
    required_bytes=int(extend("required_bytes")),
    temporary_bytes=int(extend("temporary_bytes")),
    all_reduce_bytes=int(extend("all_reduce_bytes")),
  )


def _lower(config: AlbertConfig, shape: StepShape, num_replicas: int, all_reduce_dtype: str) -> bytes:
  load_tensorflow()
  from albert_tf.optim.config import OptimizerConfig
  from albert_tf.planning.lowering import lower_train_step

  options = dataclasses.asdict(shape)
  return lower_train_step(
    config,
    num_replicas=num_replicas,
    all_reduce_dtype=all_reduce_dtype,
    optimizer_config=OptimizerConfig(name=options.pop("optimizer")),
    encoder_options={name: options.pop(name) for name in ("use_one_hot_embeddings", "layer_loop")},
    **options,
  ).hlo


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
    shallow: compile two models with few layers and extend, where `depths_to_compile`: faster, within about 2%.
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
    self._cache_dir, self._cached_only = os.path.expanduser(cache_dir), cached_only
    self._all_reduce_dtype, self._shallow, self._say = all_reduce_dtype, shallow, say

  def __call__(self, shape: StepShape) -> Figures | None:
    depths = depths_to_compile(self._config, remat=shape.remat) if self._shallow else None
    if depths is None:
      return self._kept(self._config, shape)
    shallow, deep = (self._kept(self._config.replace(num_hidden_layers=depth), shape) for depth in depths)
    if shallow is None or deep is None:
      return None
    return by_depth(shallow, deep, depths=depths, layers=self._config.num_hidden_layers)

  def _kept(self, config: AlbertConfig, shape: StepShape) -> Figures | None:
    """The figures on disk; where there are none, and it may compile, new ones, which are then kept."""
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
      cycles=step.schedule.cycles if step.schedule else float(step.estimated_cycles),
      estimated_cycles=float(step.estimated_cycles),
      memory_cycles=step.schedule.memory_cycles if step.schedule else 0.0,
      compile_seconds=step.compile_seconds,
      refused=not step.fits,
      loops_counted_once=step.loops_of_unknown_length,
      all_reduces=len(sums),
      all_reduce_bytes=sum(each.num_bytes for each in sums),
      all_reduce_seconds=waiting_seconds(sums, self._topology),
    )
