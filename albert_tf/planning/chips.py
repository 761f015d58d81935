"""TPU chips and slices: memory, peak and clock, with the source of every figure.

The planner uses them, and run_pretrain.py for the peak of a rented slice.
"""

import math
import re
from typing import NamedTuple

from albert_tf.errors import UserError

GIB = 2**30


class Chip(NamedTuple):
  """One kind of TPU."""

  name: str
  cores_per_chip: int  # Devices a chip shows to a program; each is one replica.
  hbm_gib: float  # Of one core, without the compiler's own reserve.
  peak_flops: float  # bfloat16 FLOP/s of one core.
  clock_hz: float  # Turns the compiler's cycles into seconds.
  hbm_bytes_per_second: float  # Of one core.
  slices: tuple[str, ...]  # Grids that can be rented and that libtpu 0.0.51 knows.

  @property
  def hbm_bytes(self) -> int:
    return int(self.hbm_gib * GIB)


class Topology(NamedTuple):
  """A slice: chips of one kind in a grid."""

  chip: Chip
  shape: tuple[int, ...]

  @property
  def name(self) -> str:
    return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

  @property
  def num_chips(self) -> int:
    return math.prod(self.shape)

  @property
  def num_cores(self) -> int:
    """Replicas of a training run on the slice."""
    return self.num_chips * self.chip.cores_per_chip


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
  "1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16",
)  # fmt: skip

# Memory: what libtpu 0.0.51 says a program may use ("exceeds available HBM") of 8, 16, 16, 16, 95
# and 32 GiB.
# Peak of v2 and v3: Jouppi et al. 2020, "A Domain-Specific Supercomputer for Training Deep Neural
# Networks", table 2 (46 and 123 TFLOP/s a chip). v4: Jouppi et al. 2023, arXiv 2304.01433, table 4
# (275 TFLOP/s). v5e, v5p, v6e: cloud.google.com/tpu/docs/v5e, v5p, v6e (197, 459 and 918 TFLOP/s).
# Clocks of v2 to v4: the same papers. The others are peak / FLOPs in a cycle: 131,072 for four
# matrix units of 128 x 128 (v5e; v5p twice), 524,288 for v6e.
# HBM of a chip, the same sources: 700, 900, 1,200, 819, 2,765, 1,640 GB/s.
_V2 = Chip("v2", 2, 7.48, 23e12, 700e6, 350e9, _FLAT)
_V3 = Chip("v3", 2, 15.48, 61.5e12, 940e6, 450e9, _FLAT + ("16x32", "32x32"))
# Two cores are libtpu's default; as one "megacore" a chip is a single device with twice of all.
_V4 = Chip("v4", 2, 15.25, 137.5e12, 1050e6, 600e9, _CUBES)
_V5E = Chip("v5e", 1, 15.75, 197e12, 1500e6, 819e9, _FLAT)
# Two tensor cores that are one device.
_V5P = Chip("v5p", 1, 95.73, 459e12, 1750e6, 2765e9, _CUBES)
_V6E = Chip("v6e", 1, 31.24, 918e12, 1750e6, 1640e9, _FLAT)
CHIPS = {chip.name: chip for chip in (_V2, _V3, _V4, _V5E, _V5P, _V6E)}


def accelerator_peak_flops(accelerator_type: str) -> float:
  """bfloat16 FLOP/s of a rented slice, all chips together; 0 where the type is not known.

  Args:
    accelerator_type: Google Cloud's name. It counts TensorCores for v2 to v5p ("v3-8": four
      chips), chips for v5e and v6e ("v5litepod-8", "v6e-8").

  Example:
    >>> accelerator_peak_flops("v3-8")
    492000000000000.0
  """
  match = re.fullmatch(r"(?P<chip>v\w+)-(?P<count>\d+)", accelerator_type.strip().lower())
  if match is None:
    return 0.0
  chip = CHIPS.get(match["chip"].replace("v5litepod", "v5e"))
  if chip is None:
    return 0.0
  num_chips = int(match["count"])
  if chip.name not in ("v5e", "v6e"):
    num_chips //= 2
  return num_chips * chip.cores_per_chip * chip.peak_flops


def parse_topology(name: str) -> Topology:
  """Reads a slice's name: chip and grid of chips, two axes, on v4 and v5p three.

  Raises:
    UserError: not a slice of `CHIPS`.

  Example:
    >>> parse_topology("v3:16x16").num_cores
    512
  """
  chip_name, _, grid = name.strip().lower().partition(":")
  known_chips = list(CHIPS.values())
  if chip_name in CHIPS:
    chip = CHIPS[chip_name]
    if grid in chip.slices:
      return Topology(chip, tuple(map(int, grid.split("x"))))
    known_chips = [chip]
  known = ""
  for chip in known_chips:
    known += "\n  " + " ".join(f"{chip.name}:{grid}" for grid in chip.slices)
  raise UserError(
    f"--topology is a chip and the slice's grid of chips. Received: {name!r}. Known are:{known}"
  )
