"""The table of chips and the names of slices."""

import pytest

from albert_tf.planning.chips import accelerator_peak_flops, parse_topology


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
