"""The answer of a plan in words, and the table of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Any

from albert_tf.planning.chips import GIB
from albert_tf.planning.plan import ESTIMATE, FINAL_SCHEDULE
from albert_tf.planning.step_compiler import FORMULA


def _gib(num_bytes: float) -> str:
  return f"{num_bytes / GIB:.2f}"


def _a_core(step: Mapping[str, Any]) -> str:
  parts = step["gradient_accumulation_steps"]
  return f"{step['per_core_batch_size']}{f' x {parts}' if parts > 1 else ''}"


def _largest_lines(largest: Mapping[str, Mapping[str, Any]]) -> list[str]:
  lines = []
  for kind, found in largest.items():
    name = "largest batch a core" + (" with --remat" if kind == "remat" else "")
    if not found["per_core_batch_size"]:
      lines.append(f"{name}: none, not even 1")
      continue
    bound = f"; {found['too_large']} is too large" if found["too_large"] else ""
    lines.append(
      f"{name}: {found['per_core_batch_size']} ({_gib(found['required_bytes'])} GiB{bound}) [{found['source']}]"
    )
  return lines


def _about(figures: Mapping[str, Any]) -> str:
  """The error of figures that are not the compiler's own of this program, as it stands behind a number."""
  error = figures["relative_error"]
  return f" ± {100 * error:.0f}%" if error else ""


def _by(time: Mapping[str, Any]) -> str:
  """Behind cycles: whose they are, and beside those of the final schedule what the compiler had estimated before."""
  if time["cycles_by"] == FINAL_SCHEDULE:
    return f" of the final schedule; estimated before it: {time['estimated_cycles'] / 1e6:.1f} M"
  return "" if time["cycles_by"] == FORMULA else " estimated"


def _time_lines(time: Mapping[str, Any], chips: int) -> list[str]:
  together = f" in {time['all_reduces']}" if time["all_reduces"] else ""
  step = (
    f"step {time['step_seconds']:.4g} s{_about(time)} = compute {time['compute_seconds']:.4g} s "
    f"({time['cycles'] / 1e6:.1f} M cycles{_by(time)}) + all-reduce {time['all_reduce_seconds']:.2g} s "
    f"({_gib(time['all_reduce_bytes'])} GiB{together}) [{time['source']}]"
  )
  rates = (
    f"{time['examples_per_second']:,.0f} examples/s, {time['tokens_per_second']:,.0f} tokens/s, "
    f"{100 * time['model_flops_utilization']:.1f}% of the chips' peak"
  )
  length = f"{time['days']:.3g} days" if time["days"] > 2 else f"{24 * time['days']:.3g} hours"
  run = f"{time['num_train_steps']:,} steps: {length}{_about(time)}"
  if time["usd"] is not None:
    run += f", {time['usd']:,.0f} US dollars{_about(time)} for {chips:,} chips"
  lines = [step, rates, run]
  if time["relative_error"]:
    lines.append(
      "±: the largest error seen, against the compiler's final schedule; no TPU has confirmed that."
    )
  if time["cycles_by"] == ESTIMATE:
    lines.append(
      "The time is too long, by up to 60%: this libtpu does not write its final schedule, so it is the estimate before "
      "it. Versions near 0.0.51 write it."
    )
  if time["loops_counted_once"]:
    lines.append(
      f"The time is too short: {time['loops_counted_once']} loops run an unknown number of times and count once."
    )
  return lines


def describe(answer: Mapping[str, Any]) -> str:
  """What `plan_run` found, for a person."""
  topology, step, memory = answer["topology"], answer["step"], answer["memory"]
  model = (
    f"{answer['model']['parameters'] / 1e6:.1f} M parameters on {topology['name']}: {topology['chips']:,} chips, "
    f"{topology['cores']:,} cores"
  )
  asked = (
    f"{step['train_batch_size']:,} examples a step: {_a_core(step)} a core, length {step['max_seq_length']}, "
    f"{step['max_predictions_per_seq']} predictions, {step['mixed_precision']}, {step['optimizer']}"
    f"{', remat' if step['remat'] else ''}"
  )
  lines = [model, asked, ""]
  needs = (
    f"{_gib(memory['required_bytes'])} GiB{_about(memory)} of {_gib(memory['available_bytes'])} GiB a core"
  )
  if answer["fits"]:
    lines.append(f"It fits: {needs} [{memory['source']}]")
    if memory["required_bytes"] * (1 + (memory["relative_error"] or 0)) > memory["available_bytes"]:
      lines.append("That is within its error: let the compiler check it, or leave more memory free.")
    lines += _time_lines(answer["time"], topology["chips"])
  else:
    lines.append(
      f"It does NOT fit: {needs}, {_gib(memory['missing_bytes'])} GiB too much [{memory['source']}]"
    )
  for option in answer.get("alternatives", []):
    verdict = f"{_gib(option['missing_bytes'])} GiB too much"
    if option["fits"]:
      verdict = f"fits, step {option['step_seconds']:.4g} s"
    lines.append(
      f"with {option['flags']}: {_gib(option['required_bytes'])} GiB, {verdict} [{option['source']}]"
    )
  lines += _largest_lines(answer.get("largest_batch", {}))
  if answer["note"]:
    lines.append(f"One core alone was compiled, since all together do not compile: {answer['note']}")
  if answer["compile_seconds"]:
    lines.append(f"compiled in {answer['compile_seconds']:.0f} s")
  return "\n".join(lines)


SWEEP_HEADER = (
  "size", "topology", "a core", "fits", "GiB a core", "step, ms", "examples/s a chip", "MFU", "days",
  "largest batch a core", "with --remat", "by",
)  # fmt: skip


def sweep_row(size: str, answer: Mapping[str, Any]) -> list[str]:
  """One line of the sweep's table; "~" marks a largest batch that no compiler has checked."""
  topology, step, memory, time = (answer[key] for key in ("topology", "step", "memory", "time"))
  largest = answer["largest_batch"]
  cells = [size, topology["name"], _a_core(step), "yes" if answer["fits"] else "no"]
  cells.append(_gib(memory["required_bytes"]))
  if time is None:
    cells += ["", "", "", ""]
  else:
    cells += [
      f"{1000 * time['step_seconds']:.0f}",
      f"{time['examples_per_second'] / topology['chips']:.1f}",
      f"{100 * time['model_flops_utilization']:.0f}%",
      f"{time['days']:.3g}",
    ]
  for found in (largest.get("plain"), largest.get("remat")):
    about = "~" if found and found["source"] == FORMULA else ""
    cells.append(f"{about}{found['per_core_batch_size']}" if found else "")
  return [*cells, memory["source"]]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table for a document."""
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join("| " + " | ".join(line) + " |" for line in lines)
