"""What a stack or an environment cannot do, as marks and skips for tests."""

from typing import Any
import warnings

import pytest

from albert_tf import compat

needs_host_xla = pytest.mark.skipif(
  not compat.HOST_XLA, reason="XLA for the CPU is not in a TensorFlow with TPU kernels"
)
needs_int8 = pytest.mark.skipif(
  not compat.HAS_INT8_PRODUCTS, reason="products of 8 bits are in TensorFlow 2.19 and later"
)
needs_addons = pytest.mark.skipif(
  compat.STACK != "addons", reason="TensorFlow Addons exists on the addons stack only"
)
# Of what differs between the stacks, the longest tests are slow on the default stack alone, where CI runs slow tests.
slow_by_default = pytest.mark.slow if compat.STACK == "keras3" else pytest.mark.stack


def interop(*packages: str) -> Any:
  """The last of these packages of the environment for `make test-interop`; elsewhere the test is skipped."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    found = [
      pytest.importorskip(name, reason="needs requirements/interop.txt") for name in packages
    ]
  return found[-1]
