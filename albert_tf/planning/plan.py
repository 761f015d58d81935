"""Will it fit, how fast: the answer for one model, one step and one slice, as numbers."""

import dataclasses
from typing import Any

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.chips import Chip, Topology
from albert_tf.planning.estimate import CONSTANTS, MEMORY_ERROR, StepShape, trainable_parameters
from albert_tf.planning.flops import training_flops_per_example
from albert_tf.planning.judge import Judge, LargestBatch, largest_batch
from albert_tf.planning.step_compiler import FORMULA, TWO_DEPTHS, Figures

SECONDS_PER_DAY = 86_400
FINAL_SCHEDULE, ESTIMATE = "final schedule", "estimate before the final schedule"
_ALL_REDUCE_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_TWO_DEPTHS_ERROR = 0.02  # Of whole models that were compiled too: benchmarks/tpu_sweep.md.


def split_batch(
  topology: Topology,
  *,
  train_batch_size: int | None,
  per_core_batch_size: int | None,
  gradient_accumulation_steps: int = 1,
) -> int:
  """Examples a core computes at a time, from either way of giving the batch.

  Raises:
    UserError: none or both are given, or the batch cannot be divided over the cores.
  """
  if (train_batch_size is None) == (per_core_batch_size is None):
    raise UserError(
      "The batch is given by exactly one of --train_batch_size (all cores) and --per_core_batch_size (one core). "
      f"Received: {train_batch_size} and {per_core_batch_size}. Give one, for example --per_core_batch_size=8."
    )
  if per_core_batch_size is not None:
    return per_core_batch_size
  assert train_batch_size is not None
  parts = topology.num_cores * gradient_accumulation_steps
  if gradient_accumulation_steps < 1 or train_batch_size < parts or train_batch_size % parts:
    lower = train_batch_size // max(parts, 1) * max(parts, 1)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
  """What turns a core's step into a run."""

  num_train_steps: int = 125_000  # ALBERT section 4.1.
  all_reduce_dtype: str = "float32"  # Type in which gradients travel; or "bfloat16".
  usd_per_chip_hour: float | None = None  # For the cost of the run; None leaves it out.

  def __post_init__(self) -> None:
    if self.num_train_steps < 1:
      raise UserError(f"num_train_steps must be at least 1. Received: {self.num_train_steps}.")
    if self.usd_per_chip_hour is not None and not self.usd_per_chip_hour >= 0:
      raise UserError(f"usd_per_chip_hour must not be negative. Received: {self.usd_per_chip_hour}.")


def fewest_parts(judge: Judge, shape: StepShape) -> StepShape:
  """The same update in the fewest micro-batches that fit; in single examples where none does.

  The compiler checks the formula's choice while it may, and more micro-batches follow where it refuses.
  """
  if not judge.surely_fits(shape):
    shape = _more_parts(judge, shape)
  while shape.per_core_batch_size > 1 and not judge.fits(judge.best(shape)):
    shape = _more_parts(judge, shape)
  return shape


def _more_parts(judge: Judge, shape: StepShape) -> StepShape:
  """The same update in the fewest micro-batches, more than now, that fit by the formula; in single examples if none."""
  total = shape.examples
  parts = [n for n in range(shape.gradient_accumulation_steps + 1, total + 1) if total % n == 0]
  options = [shape.replace(gradient_accumulation_steps=n, per_core_batch_size=total // n) for n in parts]
  return next(filter(judge.surely_fits, options), options[-1] if options else shape)


def _relative_error(source: str, chip: Chip) -> dict[str, float | None]:
  """How far figures of this source may be from the compiler's of the whole program: None where they are its own."""
  if source == FORMULA:
    return {"memory": MEMORY_ERROR, "time": CONSTANTS[chip.name].cycles_error}
  error = _TWO_DEPTHS_ERROR if source.endswith(TWO_DEPTHS) else None
  return {"memory": error, "time": error}


def cycles_by(figures: Figures) -> str:
  """What a step's cycles are: FINAL_SCHEDULE, ESTIMATE where this libtpu does not write one, or FORMULA."""
  if figures.source == FORMULA:
    return FORMULA
  return FINAL_SCHEDULE if figures.memory_cycles else ESTIMATE


def step_time(judge: Judge, shape: StepShape, figures: Figures, run: RunSettings) -> dict[str, Any]:
  """Seconds of a step and what follows from them.

  Compute is by the final schedule, where an instruction takes as long as its bundles or its bytes to and from HBM.
  The all-reduce is added. Of a program of all cores the all-reduce is what its schedule does not hide behind
  computation; else it is the gradients' bytes over all links, as if nothing were hidden.

  Returns:
    Seconds, rates of the whole slice, `model_flops_utilization` (model FLOPs, without rematerialisation, over the
    peak of all cores), days and, with a price, US dollars of the run; `relative_error` is that of all of them.
  """
  topology, config = judge.topology, judge.config
  compute = figures.cycles / topology.chip.clock_hz
  num_bytes, all_reduce = figures.all_reduce_bytes, figures.all_reduce_seconds
  if not figures.all_reduces:
    num_bytes = trainable_parameters(config) * _ALL_REDUCE_ITEM_BYTES[run.all_reduce_dtype]
    all_reduce = topology.all_reduce_seconds(num_bytes)
  seconds = compute + all_reduce
  examples = shape.examples * topology.num_cores
  flops = training_flops_per_example(
    config,
    max_seq_length=shape.max_seq_length,
    max_predictions_per_seq=shape.max_predictions_per_seq,
  )
  days = run.num_train_steps * seconds / SECONDS_PER_DAY
  price = run.usd_per_chip_hour
  return {
    "source": figures.source,
    "relative_error": _relative_error(figures.source, topology.chip)["time"],
    "cycles": figures.cycles,
    "cycles_by": cycles_by(figures),
    "estimated_cycles": figures.estimated_cycles or None,
    "memory_bound_seconds": figures.memory_cycles / topology.chip.clock_hz or None,
    "loops_counted_once": figures.loops_counted_once,
    "compute_seconds": compute,
    "all_reduce_seconds": all_reduce,
    "all_reduce_bytes": num_bytes,
    "all_reduces": figures.all_reduces or None,
    "step_seconds": seconds,
    "examples_per_second": examples / seconds,
    "tokens_per_second": examples * shape.max_seq_length / seconds,
    "model_flops_utilization": flops * examples / (seconds * topology.num_cores * topology.chip.peak_flops),
    "num_train_steps": run.num_train_steps,
    "days": days,
    "usd": None if price is None else days * 24 * topology.num_chips * price,
  }


def _memory(judge: Judge, figures: Figures) -> dict[str, Any]:
  return {
    "source": figures.source,
    "relative_error": _relative_error(figures.source, judge.topology.chip)["memory"],
    "required_bytes": figures.required_bytes,
    "available_bytes": judge.available_bytes,
    "missing_bytes": 0 if judge.fits(figures) else max(figures.required_bytes - judge.available_bytes, 1),
    "temporary_bytes": figures.temporary_bytes,
  }


def _largest(found: LargestBatch) -> dict[str, Any]:
  return {
    "per_core_batch_size": found.examples,
    "source": found.figures and found.figures.source,
    "required_bytes": found.figures and found.figures.required_bytes,
    "too_large": found.next_too_large,
  }


def _alternatives(judge: Judge, shape: StepShape, run: RunSettings) -> list[dict[str, Any]]:
  """The same update in less memory: rematerialisation, and micro-batches where they are needed."""
  remat = shape.replace(remat=True)
  options = [] if shape.remat else [remat]
  for option in [shape, *options]:
    if not judge.fits(judge.best(option)):
      options.append(_more_parts(judge, option))
  found = []
  for option in options:
    figures = judge.best(option) if option == remat else judge.estimated(option)
    parts, fits = option.gradient_accumulation_steps, judge.fits(figures)
    words = [f"--gradient_accumulation_steps={parts}"] if parts > shape.gradient_accumulation_steps else []
    words += ["--remat"] if option.remat and not shape.remat else []
    seconds = step_time(judge, option, figures, run)["step_seconds"] if fits else None
    found.append({"flags": " ".join(words), "fits": fits, **_memory(judge, figures), "step_seconds": seconds})
  return found


def plan_run(
  judge: Judge, shape: StepShape, run: RunSettings, *, check_largest: bool = True
) -> dict[str, Any]:
  """Answers whether a step fits, how fast it is, and what else would fit.

  Args:
    judge: the model, the slice, and who gives figures.
    shape: the step as asked.
    run: length and price.
    check_largest: let the compiler check the largest batch; else it is by formula, scaled to the step as asked.

  Returns:
    JSON-ready: `fits`, `memory`, `time` (None where it does not fit), `largest_batch`, `alternatives` (the same
    update in less memory) and what was asked.
  """
  topology = judge.topology
  figures = judge.best(shape)
  fits = judge.fits(figures)
  answer: dict[str, Any] = {
    "topology": {
      "name": topology.name,
      "chips": topology.num_chips,
      "cores": topology.num_cores,
      "hbm_bytes_per_core": judge.available_bytes,
      "peak_flops_per_core": topology.chip.peak_flops,
      "clock_hz": topology.chip.clock_hz,
    },
    "model": {**judge.config.to_dict(), "parameters": trainable_parameters(judge.config)},
    "step": {**dataclasses.asdict(shape), "train_batch_size": shape.examples * topology.num_cores},
    "fits": fits,
    "memory": _memory(judge, figures),
    "time": step_time(judge, shape, figures, run) if fits else None,
    "compile_seconds": figures.compile_seconds,
    "note": figures.note,
  }
  answer["alternatives"] = _alternatives(judge, shape, run)
  if not check_largest:
    judge.compiles = 0
  answer["largest_batch"] = {
    "remat" if remat else "plain": _largest(largest_batch(judge, shape.replace(remat=remat)))
    for remat in sorted({shape.remat, True})
  }
  return answer
