"""Damaged TensorFlow checkpoints and safetensors; their readers are C++ and Rust, so a child reads them."""

import pathlib
from typing import Any

from hypothesis import strategies as st
import numpy as np
import pytest
from support.fuzzing import Child, damaged, fuzz
from support.synthetic_checkpoint import CONFIG, random_variables, write_tf1

pytestmark = pytest.mark.slow
GOOD = random_variables(CONFIG)


def load(path: str) -> list[str]:
  """The names of what is read, with their shapes; in the child."""
  from albert_tf.checkpoints import read_checkpoint

  read = read_checkpoint(path)
  for name in set(GOOD) & set(read.variables):
    np.testing.assert_array_equal(read.variables[name], GOOD[name])  # Checksums: never another value.
  return sorted(read.variables)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return pathlib.Path(write_tf1(tmp_path_factory.mktemp("checkpoint") / "a", CONFIG, GOOD))


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@fuzz(data=st.data())
def test_a_bundle(
  child: Child, checkpoint: pathlib.Path, part: str, tmp_path: pathlib.Path, data: Any
) -> None:
  for file in checkpoint.iterdir():
    content = file.read_bytes()
    (tmp_path / file.name).write_bytes(data.draw(damaged(content)) if file.name.endswith(part) else content)
  child("fuzz.test_checkpoints:load", tmp_path / "model.ckpt-best")
