"""How sides are timed, and the sizes and rates of a step on a GPU."""

import pathlib

import pytest

from albert_tf.errors import UserError
from benchmarks.gpu.run_programs import Step, example_batch
from benchmarks.measuring import in_turn, median_times


def test_sides_take_turns_after_a_warm_up():
  order = []
  times = median_times({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
  assert order == ["a", "b"] * 3
  assert set(times) == {"a", "b"}


def test_what_a_side_returns_in_each_round():
  numbers = iter(range(4))
  assert in_turn({"a": lambda: next(numbers), "b": lambda: next(numbers)}, rounds=2) == {
    "a": [0, 2],
    "b": [1, 3],
  }


def test_rates_of_a_step():
  step = Step.of_program(pathlib.Path("programs/base_512_64.mlir.gz"))
  assert step == Step.parse("base,512,64")
  # 6 FLOPs for each weight and token, of 12 layers with 7.1 M weights; attention and the vocabulary beside.
  figures = step.figures(milliseconds=100.0)
  assert figures["predictions"] == 77
  assert figures["examples_per_s"] == 640
  assert figures["model_tflops"] == pytest.approx(6 * 12 * 7.1e6 * 512 * 64 / 0.1 / 1e12, rel=0.15)


@pytest.mark.parametrize("text", ["base", "giant,512,64", "base,512,64,1", "base,x,64"])
def test_what_is_no_step_is_refused(text):
  with pytest.raises(UserError, match=f"'{text}'"):
    Step.parse(text)


def test_masked_positions_are_within_the_texts():
  batch = example_batch(Step.parse("tiny,40,3"))
  lengths = batch["input_mask"].sum(axis=1)
  assert batch["masked_lm_positions"].shape == (3, 6)  # 3 texts, and 15% of 40 tokens.
  assert (batch["masked_lm_positions"].max(axis=1) < lengths).all()
