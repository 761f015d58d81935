"""Runs `run_pretrain.py`, or another command, in processes of its own, alone or as workers of one cluster."""

from collections.abc import Mapping
import json
import pathlib
import subprocess
from typing import Any

import numpy as np
from support.commands.child_processes import free_addresses, start_python, words
from support.commands.forked_commands import ROOT
from support.tiny_records import SPEC, tiny_config, write_train_and_eval

from albert_tf.checkpoints.bundle import latest_checkpoint, read_bundle

METRICS = """
  loss masked_lm_loss masked_lm_accuracy sentence_order_loss sentence_order_accuracy
  gradient_norm weight_norm update_norm learning_rate
""".split()


def write_inputs(folder: pathlib.Path, **config: Any) -> dict[str, Any]:
  """Records and a configuration in `folder`; returns the flags that name them."""
  model = folder / "albert_config.json"
  model.write_text(tiny_config(**config).to_json_string())
  train, held_out = write_train_and_eval(folder)
  return {
    "input_file": train,
    "eval_input_file": held_out,
    "albert_config_file": model,
    "max_seq_length": SPEC.max_seq_length,
    "max_predictions_per_seq": SPEC.max_predictions_per_seq,
  }


def start(
  flags: Mapping[str, Any], *, script: str = "run_pretrain", **environment: str
) -> subprocess.Popen[str]:
  """Starts a command of tpu_scripts."""
  return start_python(str(ROOT / f"tpu_scripts/{script}.py"), *words(flags), **environment)


def start_workers(
  flags: Mapping[str, Any],
  count: int,
  *,
  script: str = "run_pretrain",
  last_worker: Mapping[str, Any] | None = None,
) -> list[subprocess.Popen[str]]:
  """Starts one run as `count` workers on the loopback address; the first is the chief.

  Args:
    flags: of the command.
    count: workers.
    script: the command.
    last_worker: flags that differ for the last one.
  """
  cluster = {"worker": free_addresses(count)}
  flags_of_each = [flags] * (count - 1) + [{**flags, **(last_worker or {})}]
  processes = []
  for index, own in enumerate(flags_of_each):
    task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
    processes.append(start(own, script=script, TF_CONFIG=json.dumps(task)))
  return processes


def end(process: subprocess.Popen[str], *, seconds: float = 240) -> tuple[int, str]:
  """Waits; returns the exit status and standard error."""
  try:
    _, stderr = process.communicate(timeout=seconds)
  except subprocess.TimeoutExpired:
    process.kill()
    raise
  return process.returncode, stderr


def reports(run: pathlib.Path) -> list[dict[str, Any]]:
  """metrics.jsonl."""
  return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def largest_differences(run: pathlib.Path, other: pathlib.Path) -> tuple[float, float]:
  """Relative in the reported metrics; in the last checkpoint's weights, relative to each variable's largest.

  Both runs must have reported and saved at the same steps.
  """
  ours, theirs = ({(r["step"], r["split"]): r for r in reports(each)} for each in (run, other))
  assert list(ours) == list(theirs)
  differences = [
    abs(ours[when][name] - value) / max(abs(value), 1e-3)
    for when, report in theirs.items()
    for name, value in report.items()
    if name in METRICS
  ]
  ours_saved, saved = (latest_checkpoint(str(each / "checkpoints")) for each in (run, other))
  assert ours_saved.removeprefix(str(run)) == saved.removeprefix(str(other))
  weights, expected = read_bundle(ours_saved), read_bundle(saved)
  assert weights.keys() == expected.keys()
  apart = [
    np.abs(weights[name] - value).max() / max(np.abs(value).max(), 1e-3)
    for name, value in expected.items()
    if value.dtype == np.float32
  ]
  return max(differences), float(max(apart))
