"""What a stack cannot do, as marks for tests."""

import pytest

from albert_tf import compat

needs_host_xla = pytest.mark.skipif(
  not compat.HOST_XLA, reason="XLA for the CPU is not in a TensorFlow with TPU kernels"
)
needs_addons = pytest.mark.skipif(
  compat.STACK != "addons", reason="TensorFlow Addons exists on the addons stack only"
)
