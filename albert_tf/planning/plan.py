"""Will the step fit, how long does the run take: the answer for one model, one step and one slice."""

import bisect
from collections.abc import Mapping
import dataclasses
from typing import Any

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.chips import GIB, Chip, Topology
from albert_tf.planning.estimate import MEMORY_ERROR, StepShape, estimate_step, trainable_parameters
from albert_tf.planning.flops import training_flops_per_example
from albert_tf.planning.tpu_compiler import CompiledStep

# Model FLOPs over the chips' peak, of whole runs of such models on TPUs: docs/tpu.md has the sources.
PUBLISHED_UTILIZATION = (0.43, 0.65)
_LARGEST_BATCH = 1 << 14  # Nobody gives a core more.


def micro_batch_size(
  topology: Topology, *, train_batch_size: int, gradient_accumulation_steps: int = 1
) -> int:
  """Examples that a core computes at a time.

  Raises:
    UserError: the batch cannot be divided over the cores.
  """
  parts = topology.num_cores * gradient_accumulation_steps
  if train_batch_size < parts or train_batch_size % parts:
    lower = train_batch_size // parts * parts
    near = f"{lower} or {lower + parts}" if lower else str(parts)
    raise UserError(
      "train_batch_size must be a multiple of cores x gradient_accumulation_steps. Received: "
      f"train_batch_size={train_batch_size}, {topology.num_cores} cores ({topology.name}), "
      f"gradient_accumulation_steps={gradient_accumulation_steps}. Use {near}, or another topology."
    )
  return train_batch_size // parts


def check_shape(config: AlbertConfig, shape: StepShape) -> None:
  """Refuses a step that the model cannot run, before anything is compiled."""
  if shape.max_seq_length > config.max_position_embeddings:
    raise UserError(
      "max_seq_length must not exceed the model's max_position_embeddings. Received: "
      f"{shape.max_seq_length} and {config.max_position_embeddings}. Plan shorter records or a larger table."
    )
  if shape.max_predictions_per_seq > shape.max_seq_length:
    raise UserError(
      "max_predictions_per_seq must not exceed max_seq_length. Received: "
      f"{shape.max_predictions_per_seq} and {shape.max_seq_length}. Give the sizes of the records."
    )


def fits_by_formula(config: AlbertConfig, shape: StepShape, chip: Chip) -> bool:
  """Whether the formula's memory, with the largest error seen on top, is there."""
  return estimate_step(config, shape, chip).required_bytes * (1 + MEMORY_ERROR) <= chip.hbm_bytes


def fewest_micro_batches(config: AlbertConfig, shape: StepShape, chip: Chip) -> StepShape:
  """The same update in the fewest micro-batches that fit by formula; in single examples where none does."""
  total = shape.examples
  options = [
    dataclasses.replace(shape, gradient_accumulation_steps=n, per_core_batch_size=total // n)
    for n in range(1, total + 1)
    if total % n == 0
  ]
  return next((option for option in options if fits_by_formula(config, option, chip)), options[-1])


def largest_batch(config: AlbertConfig, shape: StepShape, chip: Chip) -> int:
  """The largest micro-batch of a core that fits by formula; 0 where not even one example does."""
  sizes = range(1, _LARGEST_BATCH)
  return bisect.bisect_left(
    sizes,
    True,
    key=lambda size: not fits_by_formula(config, dataclasses.replace(shape, per_core_batch_size=size), chip),
  )


def step_seconds(config: AlbertConfig, shape: StepShape, chip: Chip) -> tuple[float, float, float]:
  """Seconds of a step: at least, and from and to what is likely.

  At least: the formula for the cycles of the final schedules, without the sum of the gradients over the cores.
  Likely: at `PUBLISHED_UTILIZATION`.
  """
  at_least = estimate_step(config, shape, chip).cycles / chip.clock_hz
  flops = training_flops_per_example(
    config, max_seq_length=shape.max_seq_length, max_predictions_per_seq=shape.max_predictions_per_seq
  )
  at_peak = shape.examples * flops / chip.peak_flops
  low, high = (max(at_least, at_peak / utilization) for utilization in reversed(PUBLISHED_UTILIZATION))
  return at_least, low, high


def plan_run(
  config: AlbertConfig,
  shape: StepShape,
  topology: Topology,
  *,
  compiled: CompiledStep | None = None,
  num_train_steps: int = 125_000,
  usd_per_chip_hour: float | None = None,
) -> dict[str, Any]:
  """Answers whether a step fits, how long it and the run take, and what else would fit.

  Args:
    config: the architecture.
    shape: the step of one core.
    topology: the slice.
    compiled: what the compiler says of the step; None: by formula.
    num_train_steps: updates of the run; 125,000 as in ALBERT, section 4.1.
    usd_per_chip_hour: price; None leaves the cost out.

  Returns:
    JSON-ready: `fits`, `memory`, `time` (None where it does not fit), `alternatives` (the same update in less memory),
    `largest_batch` and what was asked. Of each pair under `time` the first is from and the second to what is likely.
  """
  chip = topology.chip
  required = (compiled or estimate_step(config, shape, chip)).required_bytes
  fits = compiled.fits if compiled else required <= chip.hbm_bytes
  examples = shape.examples * topology.num_cores
  largest = {
    name: largest_batch(config, dataclasses.replace(shape, remat=name == "remat"), chip)
    for name in ("plain", "remat")
  }
  answer: dict[str, Any] = {
    "topology": {
      "name": topology.name,
      "chips": topology.num_chips,
      "cores": topology.num_cores,
      "hbm_bytes_per_core": chip.hbm_bytes,
    },
    "model": {**config.to_dict(), "parameters": trainable_parameters(config)},
    "step": {**shape.to_dict(), "train_batch_size": examples},
    "fits": fits,
    "memory": {
      "by": "compiler" if compiled else "formula",
      "relative_error": None if compiled else MEMORY_ERROR,
      "required_bytes": required,
      "available_bytes": chip.hbm_bytes,
      "missing_bytes": 0 if fits else max(required - chip.hbm_bytes, 1),
    },
    "time": None,
    "alternatives": [] if fits else _alternatives(config, shape, chip),
    "largest_batch": largest,
    "compile_seconds": compiled.compile_seconds if compiled else None,
  }
  if fits:
    at_least, low, high = step_seconds(config, shape, chip)
    hours = [num_train_steps * seconds / 3600 for seconds in (at_least, low, high)]
    price = None if usd_per_chip_hour is None else usd_per_chip_hour * topology.num_chips
    answer["time"] = {
      "step_seconds_at_least": at_least,
      "step_seconds_likely": [low, high],
      "examples_per_second_likely": [examples / high, examples / low],
      "num_train_steps": num_train_steps,
      "hours_at_least": hours[0],
      "hours_likely": hours[1:],
      "usd_likely": None if price is None else [price * each for each in hours[1:]],
    }
  return answer


def _alternatives(config: AlbertConfig, shape: StepShape, chip: Chip) -> list[dict[str, Any]]:
  """The same update in less memory, by formula: with rematerialisation, in more micro-batches, with both."""
  remat = dataclasses.replace(shape, remat=True)
  options = [fewest_micro_batches(config, shape, chip), remat, fewest_micro_batches(config, remat, chip)]
  found = {}
  for option in options:
    flags = []
    if option.gradient_accumulation_steps != shape.gradient_accumulation_steps:
      flags.append(f"--gradient_accumulation_steps={option.gradient_accumulation_steps}")
    if option.remat and not shape.remat:
      flags.append("--remat")
    if flags and fits_by_formula(config, option, chip):
      found[" ".join(flags)] = estimate_step(config, option, chip).required_bytes
  return [{"flags": flags, "required_bytes": required} for flags, required in found.items()]


def _duration(hours: float) -> str:
  return f"{hours:.3g} hours" if hours < 48 else f"{hours / 24:.3g} days"


def describe(answer: Mapping[str, Any]) -> str:
  """What `plan_run` found, for a person."""
  topology, step, memory, time = (answer[key] for key in ("topology", "step", "memory", "time"))
  parts = step["gradient_accumulation_steps"]
  model = (
    f"{answer['model']['parameters'] / 1e6:.1f} M parameters on {topology['name']}: {topology['chips']:,} chips, "
    f"{topology['cores']:,} cores"
  )
  a_core = f"{step['per_core_batch_size']}{f' x {parts}' if parts > 1 else ''} a core"
  asked = (
    f"{step['train_batch_size']:,} examples a step: {a_core}, length {step['max_seq_length']}, "
    f"{step['max_predictions_per_seq']} predictions, {step['mixed_precision']}, {step['optimizer']}"
    f"{', remat' if step['remat'] else ''}"
  )
  lines = [model, asked, ""]
  error = memory["relative_error"] or 0
  about = f" ± {100 * error:.0f}%" if error else ""
  required, available = memory["required_bytes"], memory["available_bytes"]
  needs = f"{required / GIB:.2f} GiB{about} of {available / GIB:.2f} GiB a core"
  if answer["fits"]:
    lines.append(f"It fits: {needs} [{memory['by']}]")
    if required * (1 + error) > available:
      lines.append("That is within its error: let the compiler check it, or leave more memory free.")
  else:
    lines.append(
      f"It does NOT fit: {needs}, {memory['missing_bytes'] / GIB:.2f} GiB too much [{memory['by']}]"
    )
  for option in answer["alternatives"]:
    lines.append(f"with {option['flags']}: {option['required_bytes'] / GIB:.2f} GiB, fits [formula]")
  if time:
    low, high = (100 * share for share in PUBLISHED_UTILIZATION)
    seconds, hours = time["step_seconds_likely"], time["hours_likely"]
    lines.append(
      f"step: at least {time['step_seconds_at_least']:.3g} s (formula of the compiler's schedules); likely "
      f"{seconds[0]:.3g} to {seconds[1]:.3g} s, at the {low:.0f} to {high:.0f}% of peak that published runs reach"
    )
    run = (
      f"{time['num_train_steps']:,} steps: at least {_duration(time['hours_at_least'])}; likely "
      f"{_duration(hours[0])} to {_duration(hours[1])}"
    )
    if time["usd_likely"]:
      run += "; {:,.0f} to {:,.0f} US dollars for {:,} chips".format(*time["usd_likely"], topology["chips"])
    lines.append(run)
  largest = answer["largest_batch"]
  lines.append(f"largest batch a core, by formula: {largest['plain']}; with --remat: {largest['remat']}")
  if answer["compile_seconds"]:
    lines.append(f"compiled in {answer['compile_seconds']:.0f} s")
  return "\n".join(lines)
