"""What all benchmarks share: how one runs as a command, and how sides are timed in turn."""

from collections.abc import Callable, Mapping, Sequence
import functools
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any, NamedTuple

# Before TensorFlow is imported: its start-up messages are no result.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from albert_tf.cli import commands

# Extensions on which the figures of a processor depend.
_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def run(measure: Callable[[], Mapping[str, Any] | None]) -> None:
  """The command: what `measure` returns is printed as one JSON line."""

  def main() -> None:
    result = measure()
    if result is not None:
      # A figure says little without the machine it is of.
      line = {"benchmark": pathlib.Path(sys.argv[0]).stem, "processor": processor()}
      line.update(result)
      print(json.dumps(line), flush=True)

  commands.run(main)


def processor() -> str:
  """Name and extensions of the processor; empty where the system does not tell."""
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    return ""
  # Such as "model name<tab>: AMD EPYC"; all cores say the same.
  fields = dict(line.split(":", 1) for line in text.replace("\t", "").splitlines() if ":" in line)
  words = fields.get("model name", "").split()
  words += [name for name in _EXTENSIONS if name in fields.get("flags", "").split()]
  return " ".join(words)


class Times(NamedTuple):
  """Seconds of some work."""

  wall: float  # By the clock.
  cpu: float  # Of the processor over all threads: other work on the machine disturbs it less.


def timed(work: Callable[[], Any]) -> Times:
  """Does the work once."""
  wall = time.perf_counter()
  cpu = time.process_time()
  work()
  return Times(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


def in_turn(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
  """What each side returns in each round.

  The sides run one after the other in each round, so other work on the machine slows all alike.
  """
  results: dict[str, list[Any]] = {name: [] for name in sides}
  for _ in range(rounds):
    for name, side in sides.items():
      results[name].append(side())
  return results


def median_times(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Times]:
  """The median of each side's times, all sides in turn.

  A round before them warms up: it traces, compiles and fills caches.
  """
  timers = {name: functools.partial(timed, work) for name, work in sides.items()}
  return {name: _median(times[1:]) for name, times in in_turn(timers, rounds + 1).items()}


def _median(times: Sequence[Times]) -> Times:
  return Times(
    wall=statistics.median(once.wall for once in times),
    cpu=statistics.median(once.cpu for once in times),
  )


def best(times: Sequence[Times]) -> Times:
  """The least time by each clock."""
  return Times(wall=min(once.wall for once in times), cpu=min(once.cpu for once in times))
