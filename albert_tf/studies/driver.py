"""The one loop of a study: what is not done yet is done, in order; what is done is never done again."""

from collections.abc import Callable, Mapping, Sequence
import datetime
import json
import os
import statistics
import time
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest
from albert_tf.studies.plan import Plan
from albert_tf.studies.stage import RECORDS, SIDE_BY_SIDE, SPEED, Stage
from albert_tf.tokenization import load_tokenizer

STUDY_FILE, _DONE = "study.json", "done"

# Title → command: runs them side by side, all to their end; raises where one fails.
RunCommands = Callable[[Mapping[str, Sequence[str]]], None]
Notice = Callable[[str], None]


def check_directory(plan: Plan) -> None:
  """Refuses a directory of another study; notes whose a new one is.

  Raises:
    UserError: the directory holds something else.
  """
  path, identity = plan.path(STUDY_FILE), json.loads(json.dumps(plan.identity()))
  if files.exists(path):
    before = _read_json(path)
    changed = sorted(key for key in before.keys() | identity.keys() if before.get(key) != identity.get(key))
    if changed:
      told = "; ".join(f"{key} {_difference(before.get(key), identity.get(key))}" for key in changed)
      raise UserError(
        f"An output directory holds one study. Received: {plan.output_dir}, begun with other settings: {told}. "
        "Give the settings it was begun with, or choose another --output_dir."
      )
    return
  found = [name for name in files.listdir(plan.output_dir) if not files.is_unfinished(name)]
  if found:
    raise UserError(
      f"A new study needs an empty or new output directory. Received: {plan.output_dir}, which holds "
      f"{', '.join(found[:4])}{', …' if len(found) > 4 else ''} and no {STUDY_FILE}. Choose another --output_dir."
    )
  _write_json(path, identity)


def run_plan(
  plan: Plan, *, run: RunCommands, notice: Notice, after: Callable[[Stage], None], at_once: int = 1
) -> None:
  """Runs what is left of a study.

  Args:
    plan: what to do, in a directory that `check_directory` has accepted.
    run: runs commands by their titles.
    notice: told what is left, and how long it may take.
    after: called behind each stage that has been run.
    at_once: commands of one kind that run side by side, where none takes another's result.

  Raises:
    UserError: records do not have this study's vocabulary.
  """
  while True:
    stages = plan.stages()  # Anew, as commands may depend on what others have found.
    left = [stage for stage in stages if not is_done(plan, stage)]
    if not left:
      return
    together = _next(left, at_once)
    for stage in together:
      if not stage.command:
        raise UserError(
          f"{stage.name} takes the time of another arm, whose run must tell it. Received: no report of updates "
          "there. Let it report at least once, with a smaller --iterations_per_loop in --train_flags."
        )
    if together[0].kind != RECORDS:
      _check_vocabulary(plan, stages)
    notice(describe_left(plan, stages))
    begun = time.monotonic()
    run({stage.name: stage.command for stage in together})
    seconds = (time.monotonic() - begun) / len(together)
    for stage in together:
      _finish(plan, stage, seconds)
      after(stage)


def _next(left: Sequence[Stage], at_once: int) -> list[Stage]:
  """The first stage that is left, with as many of its kind as may run beside it."""
  first = left[0]
  if first.kind not in SIDE_BY_SIDE:
    return [first]
  waiting = {stage.name for stage in left}
  return [stage for stage in left if stage.kind == first.kind and stage.after not in waiting][:at_once]


def _finish(plan: Plan, stage: Stage, seconds: float) -> None:
  """Notes that a stage is done, and its share of the time."""
  if not files.exists(stage.produces):
    raise UserError(
      f"A command that succeeds leaves its result. Received: no {stage.produces} after {stage.name}. Start again; if "
      "it stays so, run the command by itself."
    )
  if stage.kind == SPEED:
    _drop_weights(stage)
  _write_json(
    _done_path(plan, stage), {"command": _lasting(plan, stage), "cost": stage.cost, "seconds": seconds}
  )


def is_done(plan: Plan, stage: Stage) -> bool:
  """Whether this very command has succeeded, and its result is still there.

  Raises:
    UserError: the result is there, of a command with other flags.
  """
  path = _done_path(plan, stage)
  if not (files.exists(path) and files.exists(stage.produces)):
    return False
  before, now = _read_json(path)["command"], _lasting(plan, stage)
  if stage.command and before != now:
    raise UserError(
      f"What is done was done by the same command. Received: {stage.produces}, which was made by other flags: "
      f"{_difference(before, now)}. Choose another --output_dir, or remove that result and {path}."
    )
  return True


def describe_left(plan: Plan, stages: Sequence[Stage]) -> str:
  """How many commands of each kind are left, and by those that are done, how long they take."""
  left = [stage for stage in stages if not is_done(plan, stage)]
  done = [_read_json(_done_path(plan, stage)) | {"kind": stage.kind} for stage in stages if stage not in left]
  seconds, unknown = 0.0, False
  lines = [f"{'left':<14}{'done':>6}{'to do':>7}{'about':>10}"]
  for kind in dict.fromkeys(stage.kind for stage in stages):
    paces = [each["seconds"] / each["cost"] for each in done if each["kind"] == kind]
    costs = [stage.cost for stage in left if stage.kind == kind]
    known = bool(paces) or not costs
    time_left = sum(costs) * statistics.fmean(paces) if paces else 0.0
    seconds, unknown = seconds + time_left, unknown or not known
    lines.append(f"{kind:<14}{len(paces):>6}{len(costs):>7}{_clock(time_left) if known else '?':>10}")
  at_least = "at least " if unknown else ""
  finish = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
  ending = f", until {finish:%H:%M}" if seconds and not unknown else ""
  return "\n".join([*lines, f"{len(left)} commands left: {at_least}{_clock(seconds)}{ending}"])


def _check_vocabulary(plan: Plan, stages: Sequence[Stage]) -> None:
  """All records that are there must have been made with the study's vocabulary."""
  made = [stage.produces for stage in stages if stage.kind == RECORDS and files.exists(stage.produces)]
  if not made or not files.exists(plan.vocabulary):
    return
  expected = load_tokenizer(plan.vocabulary).model_sha256
  for path in made:
    found = Manifest.load(os.path.dirname(path)).vocab_sha256
    if found != expected:
      raise UserError(
        f"All arms of a study must read the study's vocabulary. Received: {os.path.dirname(path)}, made with one whose "
        f"SHA-256 begins with {found[:12]}, beside {plan.vocabulary} with {expected[:12]}. Remove those records, so "
        "that they are made anew, or give back the vocabulary they were made with."
      )


def _drop_weights(stage: Stage) -> None:
  """Of runs that were made for their speed alone: up to gigabytes that nobody reads."""
  folder = os.path.join(os.path.dirname(stage.produces), "checkpoints")
  if files.isdir(folder):
    files.remove(folder)


def _lasting(plan: Plan, stage: Stage) -> list[str]:
  """The command without what changes no result: devices, and the number of workers."""
  return [
    word for word in stage.command if word not in plan.device_flags and not word.startswith("--num_workers=")
  ]


def _difference(before: Any, now: Any) -> str:
  if isinstance(before, list) and isinstance(now, list):
    gone, new = ([word for word in a if word not in b] for a, b in ((before, now), (now, before)))
    return f"{' '.join(gone) or 'nothing'} → {' '.join(new) or 'nothing'}"
  return f"{before} → {now}"


def _done_path(plan: Plan, stage: Stage) -> str:
  return plan.path(_DONE, f"{stage.name}.json")


def _read_json(path: str) -> dict[str, Any]:
  try:
    value = json.loads(files.read_bytes(path))
    assert isinstance(value, dict)
    return value
  except (ValueError, AssertionError) as error:
    raise UserError(
      f"What a study notes about itself must be as run_study.py wrote it. Received: {path} ({error}). Remove it; what "
      "it stood for is looked at again."
    ) from error


def _write_json(path: str, value: Any) -> None:
  files.makedirs(os.path.dirname(path))
  with files.atomic_writer(path, "w") as stream:
    stream.write(json.dumps(value, indent=2) + "\n")


def _clock(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))
