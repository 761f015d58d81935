"""TPU chips and slices: memory, peak, clock and interconnect, with the source of every figure."""

import dataclasses
import math
import re

from albert_tf.errors import UserError

GIB = 2**30
# One hop between neighbours: the usual order of magnitude, not a measurement.
HOP_SECONDS = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """One kind of TPU.

  Attributes:
    name: as in a topology's name.
    cores_per_chip: devices a chip shows to a program; each is one replica.
    hbm_bytes: memory of one core that the compiler hands out, its own reserve already taken off.
    peak_flops: bfloat16 FLOP/s of one core.
    clock_hz: turns the compiler's cycles into seconds.
    link_bytes_per_second: one interconnect link, one direction.
    slices: shapes in chips that can be rented and that libtpu 0.0.51 answers; the first is one chip.
    one_ring: of these, the shapes whose gradients libtpu 0.0.51 sums on one ring over all chips; else on one an axis.
  """

  name: str
  cores_per_chip: int
  hbm_bytes: int
  peak_flops: float
  clock_hz: float
  link_bytes_per_second: float
  slices: tuple[str, ...]
  one_ring: tuple[str, ...] = ()


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
  "1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16",
)  # fmt: skip


def _gib(value: float) -> int:
  return int(value * GIB)


# Memory: what libtpu 0.0.51 says a program may use ("exceeds available HBM") of 8, 16, 16, 16, 95 and 32 GiB.
# Peak and links of v2 and v3: Jouppi et al. 2020, "A Domain-Specific Supercomputer for Training Deep Neural
# Networks", table 2 (46 and 123 TFLOP/s a chip, four links of 496 and 656 Gbit/s). v4: Jouppi et al. 2023,
# arXiv 2304.01433, table 4 (275 TFLOP/s, six links of 50 GB/s). v5e, v5p, v6e: cloud.google.com/tpu/docs/v5e, v5p, v6e
# (197, 459 and 918 TFLOP/s; 400, 1200 and 800 GB/s a chip, both directions of its four, six and four links together).
# Clocks of v2 to v4: the same papers. The others are peak / FLOPs in a cycle: 131,072 for four matrix units of
# 128 x 128 (v5e; v5p twice), 524,288 for v6e. On all six, a large product of matrices takes in the compiler's own
# cycles 1.02 (v2) to 1.42 (v6e) times what these figures allow, so cycles / clock is never faster than the peak.
_CHIPS = (
  Chip(
    name="v2",
    cores_per_chip=2,
    hbm_bytes=_gib(7.48),
    peak_flops=23e12,
    clock_hz=700e6,
    link_bytes_per_second=62e9,
    slices=(*_FLAT,),
  ),
  Chip(
    name="v3",
    cores_per_chip=2,
    hbm_bytes=_gib(15.48),
    peak_flops=61.5e12,
    clock_hz=940e6,
    link_bytes_per_second=82e9,
    slices=(*_FLAT, "16x32", "32x32"),
  ),
  Chip(
    name="v4",
    cores_per_chip=2,  # libtpu's default; as one "megacore" a chip is a single device with twice of everything.
    hbm_bytes=_gib(15.25),
    peak_flops=137.5e12,
    clock_hz=1050e6,
    link_bytes_per_second=50e9,
    slices=_CUBES,
  ),
  Chip(
    name="v5e",
    cores_per_chip=1,
    hbm_bytes=_gib(15.75),
    peak_flops=197e12,
    clock_hz=1500e6,
    link_bytes_per_second=50e9,
    slices=_FLAT,
    one_ring=("2x2", "2x4"),
  ),
  Chip(
    name="v5p",
    cores_per_chip=1,  # Two tensor cores that the compiler treats as one device.
    hbm_bytes=_gib(95.73),
    peak_flops=459e12,
    clock_hz=1750e6,
    link_bytes_per_second=100e9,
    slices=_CUBES,
  ),
  Chip(
    name="v6e",
    cores_per_chip=1,
    hbm_bytes=_gib(31.24),
    peak_flops=918e12,
    clock_hz=1750e6,
    link_bytes_per_second=100e9,
    slices=_FLAT,
    one_ring=("2x2", "2x4"),
  ),
)
CHIPS = {chip.name: chip for chip in _CHIPS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
  """A slice: chips of one kind in a grid."""

  chip: Chip
  shape: tuple[int, ...]

  @property
  def name(self) -> str:
    return f"{self.chip.name}:{self._grid}"

  @property
  def _grid(self) -> str:
    return "x".join(map(str, self.shape))

  @property
  def num_chips(self) -> int:
    return math.prod(self.shape)

  @property
  def num_cores(self) -> int:
    """Replicas of a training run on the slice."""
    return self.num_chips * self.chip.cores_per_chip

  def all_reduce_seconds(self, num_bytes: int, links: int = 0) -> float:
    r"""Time to add up one buffer over all chips, at full link rate and with nothing else running.

    $t = 2 \frac{n - 1}{n} \frac{\text{bytes}}{k \cdot \text{link}} + 2 \cdot \text{hops} \cdot t_{hop}$

    Reduce-scatter and all-gather send 2 bytes (n - 1) / n a chip over k of its links at once. n: chips. The sum of a
    chip's own two cores goes through its memory and is left out.

    Args:
      num_bytes: size of the buffer on one core.
      links: k, where the compiler has said; 0: both directions of every ring.

    Returns:
      Seconds; 0 on one chip.
    """
    axes = [length for length in self.shape if length > 1]
    if not axes:
      return 0.0
    share = (self.num_chips - 1) / self.num_chips
    hops = sum(length - 1 for length in axes)
    rings = 1 if self._grid in self.chip.one_ring else len(axes)
    rate = (links or 2 * rings) * self.chip.link_bytes_per_second
    return 2 * share * num_bytes / rate + 2 * hops * HOP_SECONDS


def accelerator_peak_flops(accelerator_type: str) -> float:
  """bfloat16 FLOP/s of a rented slice, all chips together; 0 where the type is not known.

  Args:
    accelerator_type: Google Cloud's word for it: TensorCores are counted for v2 to v5p ("v3-8": four chips), chips
      for v5e and v6e ("v5litepod-8", "v6e-8").

  Example:
    >>> accelerator_peak_flops("v3-8")
    492000000000000.0
  """
  found = re.fullmatch(r"(v\d+(?:p|e|litepod)?)-(\d+)", accelerator_type.strip().lower())
  chip = CHIPS.get(found[1].replace("v5litepod", "v5e")) if found else None
  if found is None or chip is None:
    return 0.0
  num_chips = int(found[2]) // (1 if chip.name in ("v5e", "v6e") else 2)
  return num_chips * chip.cores_per_chip * chip.peak_flops


def known_topologies(chip: str | None = None) -> list[str]:
  """Names of all known slices, or those of one kind of chip."""
  return [f"{c.name}:{shape}" for c in _CHIPS if chip in (None, c.name) for shape in c.slices]


def parse_topology(name: str) -> Topology:
  """Reads a slice's name.

  Args:
    name: chip and grid of chips, as `"v3:16x16"`; two axes, on v4 and v5p three.

  Raises:
    UserError: not one of `known_topologies()`.

  Example:
    >>> parse_topology("v3:16x16").num_cores
    512
  """
  chip, _, shape = name.strip().lower().partition(":")
  if chip in CHIPS and shape in CHIPS[chip].slices:
    return Topology(chip=CHIPS[chip], shape=tuple(int(part) for part in shape.split("x")))
  if chip in CHIPS:
    known = "  " + " ".join(known_topologies(chip))
  else:
    known = "\n".join("  " + " ".join(known_topologies(kind)) for kind in CHIPS)
  raise UserError(
    "The topology is a chip and the slice's grid of chips, with a colon between. "
    f"Received: {name!r}. Known are:\n{known}"
  )
