"""Whether a training step fits a slice, how long a run takes, and what would fit instead.

compile_for_tpu.py prints `describe`, and takes the micro-batches that are fastest by formula.
"""

import bisect
import dataclasses
from typing import NamedTuple

from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.planning.chips import GIB, Chip, Topology
from albert_tf.planning.estimate import (
  MEMORY_ERROR,
  STEP_PER_FORWARD,
  StepShape,
  cycles,
  forward_flops_per_example,
  memory,
  muon_flops,
)
from albert_tf.planning.tpu_compiler import CompiledStep

# Model FLOPs utilization of published runs on TPUs; docs/planner.md has the sources.
_LOW_UTILIZATION = 0.43
_HIGH_UTILIZATION = 0.65
_LARGEST_BATCH = 1 << 14  # Upper limit of the search.


class _MemoryNeed(NamedTuple):
  fits: bool
  required_bytes: int
  method: str
  error: float  # Relative, of `required_bytes`.


class StepSeconds(NamedTuple):
  """Seconds of a step."""

  at_least: float  # The formula's cycles, without the sum of the gradients over the cores.
  low: float  # Likely, at the highest utilization of published runs.
  high: float  # Likely, at the lowest.


def describe(
  config: AlbertConfig,
  shape: StepShape,
  topology: Topology,
  *,
  compiled: CompiledStep | None = None,
  num_train_steps: int = 125_000,
  usd_per_chip_hour: float | None = None,
) -> str:
  """Describes whether a step fits, its time, the time of the run, and alternatives.

  Args:
    config, shape, topology: the architecture, the step of one core, and the slice.
    compiled: the compiler's result; None: use the formula.
    num_train_steps: updates of the run; 125,000 as in ALBERT, section 4.1.
    usd_per_chip_hour: price; None leaves the cost out.
  """
  chip = topology.chip
  slice_size = f"{topology.num_chips:,} chips, {topology.num_cores:,} cores"
  lines = [
    f"{config.param_count(heads=HEADS) / 1e6:.1f} M parameters on {topology.name}: {slice_size}",
    _step_line(shape, topology),
    "",
  ]

  # Memory, by the compiler's word or by formula.
  if compiled:
    need = _MemoryNeed(compiled.fits, compiled.required_bytes, "compiler", error=0.0)
  else:
    required_bytes = memory(config, shape, chip)
    fits = required_bytes <= chip.hbm_bytes
    need = _MemoryNeed(fits, required_bytes, "formula", MEMORY_ERROR)
  lines += _memory_lines(config, shape, chip, need)

  # Time and cost of a step that fits.
  if need.fits:
    seconds = step_seconds(config, shape, chip)
    lines.append(
      f"step: at least {seconds.at_least:.3g} s (formula of the compiler's schedules); likely "
      f"{seconds.low:.3g} to {seconds.high:.3g} s, at the {100 * _LOW_UTILIZATION:.0f} to "
      f"{100 * _HIGH_UTILIZATION:.0f}% of peak that published runs reach"
    )
    at_least, low, high = (num_train_steps * value / 3600 for value in seconds)
    run = (
      f"{num_train_steps:,} steps: at least {_duration(at_least)}; "
      f"likely {_duration(low)} to {_duration(high)}"
    )
    if usd_per_chip_hour is not None:
      usd_per_hour = usd_per_chip_hour * topology.num_chips
      run += (
        f"; {usd_per_hour * low:,.0f} to {usd_per_hour * high:,.0f} US dollars "
        f"for {topology.num_chips:,} chips"
      )
    lines.append(run)

  # Room for more.
  plain = largest_batch(config, dataclasses.replace(shape, remat=False), chip)
  remat = largest_batch(config, dataclasses.replace(shape, remat=True), chip)
  lines.append(f"largest batch a core, by formula: {plain}; with --remat: {remat}")
  return "\n".join(lines)


def _step_line(shape: StepShape, topology: Topology) -> str:
  """Such as "4,096 examples a step: 32 x 4 a core, length 512, …"."""
  per_core = f"{shape.per_core_batch_size}"
  if shape.gradient_accumulation_steps > 1:
    per_core += f" x {shape.gradient_accumulation_steps}"
  line = (
    f"{shape.examples * topology.num_cores:,} examples a step: {per_core} a core, "
    f"length {shape.max_seq_length}, {shape.max_predictions_per_seq} predictions, "
    f"{shape.mixed_precision}, {shape.optimizer}"
  )
  if shape.remat:
    line += ", remat"
  return line


def _memory_lines(
  config: AlbertConfig, shape: StepShape, chip: Chip, need: _MemoryNeed
) -> list[str]:
  """Lines on the memory of a step; if it does not fit, with alternatives."""
  required = f"{need.required_bytes / GIB:.2f} GiB"
  if need.error:
    required += f" ± {100 * need.error:.0f}%"
  required += f" of {chip.hbm_bytes / GIB:.2f} GiB a core"
  if not need.fits:
    missing = (need.required_bytes - chip.hbm_bytes) / GIB
    lines = [f"It does NOT fit: {required}, {missing:.2f} GiB too much [{need.method}]"]
    for flags, bytes_needed in _alternatives(config, shape, chip).items():
      lines.append(f"with {flags}: {bytes_needed / GIB:.2f} GiB, fits [formula]")
    return lines
  lines = [f"It fits: {required} [{need.method}]"]
  if need.required_bytes * (1 + need.error) > chip.hbm_bytes:
    lines.append("That is within its error: let the compiler check it, or leave more memory free.")
  return lines


def _alternatives(config: AlbertConfig, shape: StepShape, chip: Chip) -> dict[str, int]:
  """Flags that need less memory → bytes of the same update, by formula."""
  remat = dataclasses.replace(shape, remat=True)
  options = (
    fastest_micro_batches(config, shape, chip),
    remat,
    fastest_micro_batches(config, remat, chip),
  )
  bytes_of_flags = {}
  for option in options:
    flags = []
    if option.gradient_accumulation_steps != shape.gradient_accumulation_steps:
      flags.append(f"--gradient_accumulation_steps={option.gradient_accumulation_steps}")
    if option.remat and not shape.remat:
      flags.append("--remat")
    if flags and fits_by_formula(config, option, chip):
      bytes_of_flags[" ".join(flags)] = memory(config, option, chip)
  return bytes_of_flags


def fits_by_formula(config: AlbertConfig, shape: StepShape, chip: Chip) -> bool:
  """Whether the formula's memory fits, with `MEMORY_ERROR` added."""
  return memory(config, shape, chip) * (1 + MEMORY_ERROR) <= chip.hbm_bytes


def fastest_micro_batches(config: AlbertConfig, shape: StepShape, chip: Chip) -> StepShape:
  """The same update in the fewest micro-batches that fit and are within 1% of the fastest.

  Single examples if nothing else fits: their programs are slower than the formula says.
  """
  options = []
  for num_batches in range(1, shape.examples):
    if shape.examples % num_batches:
      continue
    option = dataclasses.replace(
      shape,
      gradient_accumulation_steps=num_batches,
      per_core_batch_size=shape.examples // num_batches,
    )
    if fits_by_formula(config, option, chip):
      options.append(option)
  if not options:
    return dataclasses.replace(
      shape, gradient_accumulation_steps=shape.examples, per_core_batch_size=1
    )
  limit = 1.01 * min(cycles(config, option, chip) for option in options)
  return next(option for option in options if cycles(config, option, chip) <= limit)


def largest_batch(config: AlbertConfig, shape: StepShape, chip: Chip) -> int:
  """The largest micro-batch of a core that fits by formula; 0 if one example does not fit."""

  def is_too_large(size: int) -> bool:
    return not fits_by_formula(config, dataclasses.replace(shape, per_core_batch_size=size), chip)

  # A larger batch needs more memory: if 1 2 3 fit and 4 is too large, 4 is found at place 3.
  return bisect.bisect_left(range(1, _LARGEST_BATCH), True, key=is_too_large)


def step_seconds(config: AlbertConfig, shape: StepShape, chip: Chip) -> StepSeconds:
  """The least and the likely time of a step."""
  at_least = cycles(config, shape, chip) / chip.clock_hz
  flops = STEP_PER_FORWARD * forward_flops_per_example(
    config,
    max_seq_length=shape.max_seq_length,
    max_predictions_per_seq=shape.max_predictions_per_seq,
    train_depths=shape.train_depths,
  )
  flops_of_step = shape.examples * flops
  if shape.optimizer == "muon":
    flops_of_step += muon_flops(config)
  at_peak = flops_of_step / chip.peak_flops
  return StepSeconds(
    at_least=at_least,
    low=max(at_least, at_peak / _HIGH_UTILIZATION),
    high=max(at_least, at_peak / _LOW_UTILIZATION),
  )


def _duration(hours: float) -> str:
  if hours < 48:
    return f"{hours:.3g} hours"
  return f"{hours / 24:.3g} days"
