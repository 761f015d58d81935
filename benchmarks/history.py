"""Five speeds of this checkout beside those of the last release, on this machine.

The release is the newest tag `v…` behind this commit. The package is Python alone, so the tag's files are those of its
wheel. Each side runs its own benchmarks, in turn. Prints a line for each speed, and one JSON line. A figure that one
side cannot give is named with the reason. Without a tag there is nothing to compare with, which is said.

Example:
  python benchmarks/history.py --rounds=3
"""

from collections.abc import Mapping
import functools
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from typing import Any, NamedTuple

from absl import flags
import measuring

_ROUNDS = flags.DEFINE_integer("rounds", 2, "Times each side runs; the best counts.", lower_bound=1)
_SIZE = flags.DEFINE_string("size", "base", "The model's size.")
_ONLY = flags.DEFINE_list("only", [], "Names of speeds to measure; empty: all.")
_ROOT = pathlib.Path(__file__).resolve().parents[1]


class Speed(NamedTuple):
  """A figure of a benchmark."""

  command: str  # The benchmark and its flags.
  place: str  # The figure in its JSON line, by keys with slashes between them.
  unit: str
  is_rate: bool  # More is faster; else less is.


# Processor time where a benchmark has it: other work on the machine disturbs it less.
_SPEEDS = {
  "data": Speed(
    "data_creation.py --megabytes=1 --worker_megabytes= --rounds=1",
    "ours_per_cpu_second",
    "records made a processor second",
    True,
  ),
  "reading": Speed(
    "record_reading.py --rounds=2",
    "examples_per_cpu_second/training",
    "records read a processor second",
    True,
  ),
  "step": Speed(
    "train_step.py --size=SIZE --only=albert_tf --rounds=2",
    "float32/steps/albert_tf/cpu_s",
    "processor seconds of a training step",
    False,
  ),
  "predict": Speed(
    "keras_predict.py --size=SIZE --sentences=200 --rounds=1",
    "alike/processor_seconds/by_length",
    "processor seconds of predict for 200 sentences",
    False,
  ),
  "early exit": Speed(
    "early_exit.py --size=SIZE --rounds=2",
    "batches/8/share_of_early_rows/0.5/ms",
    "milliseconds of 8 texts, half of which stop early",
    False,
  ),
}


def _measure() -> Mapping[str, Any]:
  tag = _last_tag()
  if tag is None:
    print("No tag v… is behind this commit, so there is no release to compare with.")
    return {"release": None}
  figures = {}
  with tempfile.TemporaryDirectory() as folder:
    _extract(tag, folder)
    for name in _ONLY.value or _SPEEDS:
      speed = _SPEEDS[name]
      sides = {
        "then": functools.partial(_figure, speed, pathlib.Path(folder)),
        "now": functools.partial(_figure, speed, _ROOT),
      }
      figures[name] = _compared(speed, measuring.in_turn(sides, _ROUNDS.value))
      print(f"{name}, {speed.unit}: {_in_words(figures[name], tag)}", flush=True)
  return {"release": tag, "size": _SIZE.value, "speeds": figures}


def _last_tag() -> str | None:
  """The newest tag of a release behind this commit."""
  command = ("git", "describe", "--tags", "--abbrev=0", "--match=v*")
  done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
  return done.stdout.strip() or None


def _extract(tag: str, folder: str) -> None:
  """Writes the files of a tag."""
  archive = subprocess.run(("git", "archive", tag), cwd=_ROOT, capture_output=True, check=True)
  with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files_of_tag:
    files_of_tag.extractall(folder, filter="data")


def _figure(speed: Speed, root: pathlib.Path) -> float | str:
  """Runs a benchmark of a checkout; where it gives no such figure, the reason."""
  script, *arguments = speed.command.replace("SIZE", _SIZE.value).split()
  done = subprocess.run(
    [sys.executable, str(root / "benchmarks" / script), *arguments],
    env=os.environ | {"PYTHONPATH": str(root)},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    return (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
  figure: Any = json.loads(done.stdout.splitlines()[-1])
  for key in speed.place.split("/"):
    if key not in figure:
      return f"no {speed.place} in its line"
    figure = figure[key]
  return float(figure)


def _compared(speed: Speed, results: Mapping[str, list[float | str]]) -> dict[str, Any]:
  """The best of each side, and how many times as fast the second is."""
  best: dict[str, Any] = {}
  for side, figures in results.items():
    reasons = [figure for figure in figures if isinstance(figure, str)]
    if reasons:
      best[side] = reasons[0]
    else:
      best[side] = max(figures) if speed.is_rate else min(figures)
  if all(isinstance(figure, float) for figure in best.values()):
    faster = best["now"] / best["then"] if speed.is_rate else best["then"] / best["now"]
    best["times_as_fast"] = round(faster, 2)
  return best


def _in_words(compared: Mapping[str, Any], tag: str) -> str:
  if "times_as_fast" not in compared:
    sides = ((tag, compared["then"]), ("now", compared["now"]))
    return "not compared; " + "; ".join(f"{side}: {figure}" for side, figure in sides)
  return (
    f"{compared['then']:.4g} in {tag}, {compared['now']:.4g} now, "
    f"{compared['times_as_fast']} times as fast"
  )


if __name__ == "__main__":
  measuring.run(_measure)
