"""A C program without Python loads exports and gives the same answers."""

import pathlib

import pytest
from support.serving import c_api

from albert_tf.serving.check import compare
from albert_tf.serving.golden import read_golden


@pytest.mark.slow
@pytest.mark.skipif(c_api.COMPILER is None, reason="needs a C compiler: cc, gcc or clang")
@pytest.mark.skipif(not c_api.libraries_are_here(), reason="this TensorFlow has no C libraries to link with")
@pytest.mark.parametrize("key", ["pair", "squad_1.1", "choice"])
def test_exports_answer_without_python(exported, key: str, tmp_path: pathlib.Path) -> None:
  path = exported(key).path
  calls, golden = read_golden(path)
  compare(calls, c_api.run_calls(path, calls, tmp_path), golden)
