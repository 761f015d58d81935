"""The all-reduces of an optimized program: what is summed together, over how many links, beside which computation."""

import re
from typing import NamedTuple

from albert_tf.planning.chips import Topology
from albert_tf.planning.optimized_program import computations, estimated_cycles, operation

_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")  # Bits of an item, and lengths.
_STRATEGY = re.compile(r'"strategy":"(\w+)".*?colors:(\d+)')


class AllReduce(NamedTuple):
  """One all-reduce of a step.

  Attributes:
    tensors: that the compiler sums together.
    num_bytes: of all of them, on one core.
    links: directions of a chip's links that carry it; 0 where the compiler did not say.
    beside: estimated cycles of the computation that runs between its start and its end; 0 where the core waits.
  """

  tensors: int
  num_bytes: int
  links: int
  beside: int


def all_reduces(program: str) -> list[AllReduce]:
  """All-reduces in the order of the compiler's schedule; a loop's count once, for a step has none there."""
  found = []
  for lines in computations(program)[0].values():
    for at, line in enumerate(lines):
      kind, name = operation(line)
      if kind in ("all-reduce", "all-reduce-start"):
        arrays = _ARRAY.findall(line.partition(" all-reduce")[0])
        beside = _cycles_until_done(name, lines[at + 1 :]) if kind == "all-reduce-start" else 0
        found.append(AllReduce(len(arrays), sum(map(_num_bytes, arrays)), _links(line), beside))
  return found


def waiting_seconds(found: list[AllReduce], topology: Topology) -> float:
  """Seconds in which a core has nothing to compute: of each all-reduce what no computation runs beside."""
  return sum(
    max(0.0, topology.all_reduce_seconds(each.num_bytes, each.links) - each.beside / topology.chip.clock_hz)
    for each in found
  )


def _num_bytes(array: tuple[str, str]) -> int:
  size = int(array[0]) // 8
  for length in filter(None, array[1].split(",")):
    size *= int(length)
  return size


def _links(line: str) -> int:
  """Each color is a ring of its own over all cores: in one direction, or with half of the data in each."""
  found = _STRATEGY.search(line)
  if found is None:
    return 0
  return int(found[2]) * (1 if found[1].startswith("UniDirection") else 2)


def _cycles_until_done(start: str, rest: list[str]) -> int:
  total = 0
  for line in rest:
    if operation(line)[0] == "all-reduce-done" and re.search(rf"%{re.escape(start)}\b", line):
      break
    total += estimated_cycles(line)
  return total
