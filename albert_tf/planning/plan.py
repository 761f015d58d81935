"""Describe whether a step fits a slice, and how long a run takes."""

import bisect
import dataclasses

from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.planning.chips import GIB, Chip, Topology
from albert_tf.planning.estimate import MEMORY_ERROR, StepShape, estimate_step
from albert_tf.planning.flops import TRAINING, forward_flops_per_example
from albert_tf.planning.tpu_compiler import CompiledStep

# Model FLOPs utilization of published runs on TPUs; docs/tpu.md has the sources.
PUBLISHED_UTILIZATION = (0.43, 0.65)
_LARGEST_BATCH = 1 << 14  # Upper limit of the search.


def fits_by_formula(config: AlbertConfig, shape: StepShape, chip: Chip) -> bool:
  """Whether the formula's memory fits, with `MEMORY_ERROR` added."""
  return estimate_step(config, shape, chip).required_bytes * (1 + MEMORY_ERROR) <= chip.hbm_bytes


def fastest_micro_batches(config: AlbertConfig, shape: StepShape, chip: Chip) -> StepShape:
  """The same update in the fewest micro-batches that fit and are within 1% of the fastest, by formula.

  Single examples if nothing else fits: their programs are slower than the formula says.
  """
  total = shape.examples
  options = [
    dataclasses.replace(shape, gradient_accumulation_steps=n, per_core_batch_size=total // n)
    for n in range(1, total + 1)
    if total % n == 0
  ]
  fitting = [option for option in options[:-1] if fits_by_formula(config, option, chip)] or options[-1:]
  cycles = [estimate_step(config, option, chip).cycles for option in fitting]
  return next(option for option, each in zip(fitting, cycles, strict=True) if each <= 1.01 * min(cycles))


def largest_batch(config: AlbertConfig, shape: StepShape, chip: Chip) -> int:
  """The largest micro-batch of a core that fits by formula; 0 if one example does not fit."""
  sizes = range(1, _LARGEST_BATCH)
  return bisect.bisect_left(
    sizes,
    True,
    key=lambda size: not fits_by_formula(config, dataclasses.replace(shape, per_core_batch_size=size), chip),
  )


def step_seconds(config: AlbertConfig, shape: StepShape, chip: Chip) -> tuple[float, float, float]:
  """Seconds of a step: minimum, likely low, likely high.

  Minimum: the formula's cycles, without the sum of the gradients over the cores. Likely: at `PUBLISHED_UTILIZATION`.
  """
  at_least = estimate_step(config, shape, chip).cycles / chip.clock_hz
  flops = TRAINING * forward_flops_per_example(
    config, max_seq_length=shape.max_seq_length, max_predictions_per_seq=shape.max_predictions_per_seq
  )
  at_peak = shape.examples * flops / chip.peak_flops
  low, high = (max(at_least, at_peak / utilization) for utilization in reversed(PUBLISHED_UTILIZATION))
  return at_least, low, high


def _alternatives(config: AlbertConfig, shape: StepShape, chip: Chip) -> dict[str, int]:
  """Flags that need less memory (remat, more micro-batches, both) → memory of the same update, by formula."""
  remat = dataclasses.replace(shape, remat=True)
  options = [fastest_micro_batches(config, shape, chip), remat, fastest_micro_batches(config, remat, chip)]
  found = {}
  for option in options:
    flags = []
    if option.gradient_accumulation_steps != shape.gradient_accumulation_steps:
      flags.append(f"--gradient_accumulation_steps={option.gradient_accumulation_steps}")
    if option.remat and not shape.remat:
      flags.append("--remat")
    if flags and fits_by_formula(config, option, chip):
      found[" ".join(flags)] = estimate_step(config, option, chip).required_bytes
  return found


def _duration(hours: float) -> str:
  return f"{hours:.3g} hours" if hours < 48 else f"{hours / 24:.3g} days"


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
  chip, parts = topology.chip, shape.gradient_accumulation_steps
  where = f"{topology.name}: {topology.num_chips:,} chips, {topology.num_cores:,} cores"
  a_core = f"{shape.per_core_batch_size}{f' x {parts}' if parts > 1 else ''} a core"
  asked = (
    f"{shape.examples * topology.num_cores:,} examples a step: {a_core}, length {shape.max_seq_length}, "
    f"{shape.max_predictions_per_seq} predictions, {shape.mixed_precision}, {shape.optimizer}"
  )
  lines = [
    f"{config.param_count(heads=HEADS) / 1e6:.1f} M parameters on {where}",
    f"{asked}, remat" if shape.remat else asked,
    "",
    *_memory(config, shape, chip, compiled),
  ]
  if _fits(config, shape, chip, compiled):
    times = step_seconds(config, shape, chip)
    hours = [num_train_steps * seconds / 3600 for seconds in times]
    low, high = (100 * share for share in PUBLISHED_UTILIZATION)
    lines.append(
      f"step: at least {times[0]:.3g} s (formula of the compiler's schedules); likely "
      f"{times[1]:.3g} to {times[2]:.3g} s, at the {low:.0f} to {high:.0f}% of peak that published runs reach"
    )
    run = "{:,} steps: at least {}; likely {} to {}".format(num_train_steps, *map(_duration, hours))
    if usd_per_chip_hour is not None:
      dollars = [usd_per_chip_hour * topology.num_chips * each for each in hours[1:]]
      run += "; {:,.0f} to {:,.0f} US dollars for {:,} chips".format(*dollars, topology.num_chips)
    lines.append(run)
  plain, remat = (largest_batch(config, dataclasses.replace(shape, remat=x), chip) for x in (False, True))
  lines.append(f"largest batch a core, by formula: {plain}; with --remat: {remat}")
  return "\n".join(lines)


def _fits(config: AlbertConfig, shape: StepShape, chip: Chip, compiled: CompiledStep | None) -> bool:
  return compiled.fits if compiled else estimate_step(config, shape, chip).required_bytes <= chip.hbm_bytes


def _memory(config: AlbertConfig, shape: StepShape, chip: Chip, compiled: CompiledStep | None) -> list[str]:
  """Lines on the memory of a step; if it does not fit, with alternatives."""
  required = (compiled or estimate_step(config, shape, chip)).required_bytes
  by, error = ("compiler", 0.0) if compiled else ("formula", MEMORY_ERROR)
  about = f" ± {100 * error:.0f}%" if error else ""
  needs = f"{required / GIB:.2f} GiB{about} of {chip.hbm_bytes / GIB:.2f} GiB a core"
  if _fits(config, shape, chip, compiled):
    lines = [f"It fits: {needs} [{by}]"]
    if required * (1 + error) > chip.hbm_bytes:
      lines.append("That is within its error: let the compiler check it, or leave more memory free.")
    return lines
  lines = [f"It does NOT fit: {needs}, {(required - chip.hbm_bytes) / GIB:.2f} GiB too much [{by}]"]
  for flags, bytes_needed in _alternatives(config, shape, chip).items():
    lines.append(f"with {flags}: {bytes_needed / GIB:.2f} GiB, fits [formula]")
  return lines
