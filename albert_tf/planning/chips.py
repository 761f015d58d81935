"""TPU chips and slices: memory, peak and clock, as chips.toml lists them.

The planner uses them, and run_pretrain.py for the peak of a rented slice.
"""

from collections.abc import Sequence
import math
import pathlib
import re
import tomllib
from typing import NamedTuple

from albert_tf.errors import UserError

GIB = 2**30


class Constants(NamedTuple):
  """What `estimate` multiplies with, fitted to programs of the compiler."""

  matrix: float  # Cycles of the matrix products, times those at the chip's peak.
  score: float  # Cycles for 1,000 attention scores, forward and backward.
  logits: float  # Numbers kept for each logit.
  update: int  # Bytes to and from HBM for a weight's update: gradient, weight, moments, some twice.
  room: float  # Bytes of a layer's scores, or of the logits, that stay in the chip's own memory.
  transfers: float  # Transfers of each further byte to or from HBM for which the core waits.
  dropout: float  # Further cycles for 1,000 attention scores with dropout.


class Chip(NamedTuple):
  """One kind of TPU."""

  name: str
  cores_per_chip: int  # Devices a chip shows to a program; each is one replica.
  hbm_gib: float  # Of one core, without the compiler's own reserve.
  peak_flops: float  # bfloat16 FLOP/s of one core.
  clock_hz: float  # Turns the compiler's cycles into seconds.
  hbm_bytes_per_second: float  # Of one core.
  slices: Sequence[str]  # Grids that can be rented and that libtpu 0.0.51 knows.
  constants: Constants

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


def _read_chips() -> dict[str, Chip]:
  chips = {}
  path = pathlib.Path(__file__).with_name("chips.toml")
  for name, figures in tomllib.loads(path.read_text(encoding="utf-8")).items():
    constants = Constants(**figures.pop("constants"))
    chips[name] = Chip(name, constants=constants, **figures)
  return chips


CHIPS = _read_chips()


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
