"""The table of chips, names of slices, and the all-reduce's time."""

import pytest

from albert_tf.errors import UserError
from albert_tf.planning.chips import accelerator_peak_flops, known_topologies, parse_topology


@pytest.mark.parametrize(
  ("name", "chips", "cores"),
  [("v2:16x16", 256, 512), ("v3:16x16", 256, 512), ("v3:32x32", 1024, 2048), ("v4:8x8x16", 1024, 2048),
   ("v5e:2x4", 8, 8), ("v5p:2x2x1", 4, 4), ("V6E:1x1", 1, 1)],
)  # fmt: skip
def test_a_name_says_chips_and_cores(name, chips, cores):
  topology = parse_topology(name)
  assert (topology.num_chips, topology.num_cores) == (chips, cores)
  assert topology.name == name.lower()


@pytest.mark.parametrize(
  ("accelerator", "teraflops"),
  [("v2-8", 4 * 46), ("v3-8", 4 * 123), ("v4-16", 8 * 275), ("v5p-8", 4 * 459), ("v5litepod-16", 16 * 197),
   ("V6E-1", 918), ("v9-8", 0), ("v3", 0), ("", 0)],
)  # fmt: skip
def test_the_peak_of_a_rented_slice(accelerator, teraflops):
  assert accelerator_peak_flops(accelerator) == pytest.approx(teraflops * 1e12)


def test_an_unknown_slice_lists_those_of_the_chip_and_an_unknown_chip_lists_all():
  with pytest.raises(UserError, match=r"'v3:3x3'. Known are:\n  v3:1x1 .* v3:32x32$"):
    parse_topology("v3:3x3")
  for name in ("v9:2x2", "v3-8", ""):
    with pytest.raises(UserError) as error:
      parse_topology(name)
    assert all(f"{known} " in f"{error.value} ".replace("\n", " ") for known in known_topologies())


def test_all_reduce():
  pod = parse_topology("v5e:16x16")
  # The published all-reduce bandwidth of a v5e pod: 51.2 TB/s, which counts what all chips send.
  sent = 2 * 255 / 256 * 1e9 * 256
  without_latency = pod.all_reduce_seconds(10**9) - pod.all_reduce_seconds(0)
  assert sent / without_latency == pytest.approx(51.2e12)
  assert parse_topology("v5e:1x1").all_reduce_seconds(10**9) == 0
  # A small slice of v5e is one ring, in both directions; a larger one has a ring an axis.
  small = parse_topology("v5e:2x4")
  rate = small.chip.link_bytes_per_second
  assert small.all_reduce_seconds(10**9) == pytest.approx(0.875 * 1e9 / rate, rel=1e-2)
  # A third axis carries its share.
  flat, cube = parse_topology("v5p:2x2x1"), parse_topology("v5p:2x2x2")
  rate = flat.chip.link_bytes_per_second
  assert flat.all_reduce_seconds(10**9) == pytest.approx(0.75 * 1e9 / (2 * rate), rel=1e-2)
  assert cube.all_reduce_seconds(10**9) == pytest.approx(0.875 * 1e9 / (3 * rate), rel=1e-2)
