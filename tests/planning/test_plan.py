"""compile_for_tpu.py: its answers by formula, bad input, one real compile; and the range of times."""

import dataclasses
import importlib.util

import pytest
from support.commands.script_runs import run_command, run_script

from albert_tf.configs import AlbertConfig
from albert_tf.planning import plan
from albert_tf.planning.chips import CHIPS, parse_topology
from albert_tf.planning.estimate import STEP_PER_FORWARD, StepShape, forward_flops_per_example

BASE, V3 = AlbertConfig.from_name("base"), parse_topology("v3:2x2")
SHAPE = StepShape(per_core_batch_size=8)
BATCH = ["--size=base", "--topology=v3:2x2", "--train_batch_size=64"]


def test_a_time_is_a_bound_and_a_range():
  """The range has the shares of peak of published runs, and is never below the bound."""
  at_least, low, high = plan.step_seconds(BASE, SHAPE, V3.chip)
  forward = forward_flops_per_example(BASE, max_seq_length=512, max_predictions_per_seq=20)
  flops = 8 * STEP_PER_FORWARD * forward
  assert (low, high) == pytest.approx((flops / 61.5e12 / 0.65, flops / 61.5e12 / 0.43))
  assert at_least < low
  text = plan.describe(BASE, SHAPE, V3, usd_per_chip_hour=2.0, num_train_steps=1_000_000)
  hours = 1e6 * high / 3600
  assert f"{low:.3g} to {high:.3g} s" in text
  assert f"to {hours:.3g} hours" in text
  assert f"to {2 * 4 * hours:,.0f} US dollars for 4 chips" in text
  slow = plan.step_seconds(BASE, SHAPE, CHIPS["v6e"])  # Its schedules are below 65 % of the peak.
  assert slow[0] == slow[1]


@pytest.mark.parametrize(
  ("size", "chip", "length", "micro_batch"),
  [
    ("base", "v5e", 512, 8),  # The scores of 8 examples have room on the chip.
    ("base", "v5e", 128, 32),
    ("base", "v3", 512, 32),
    ("base_v1", "v5e", 512, 8),  # Dropout takes as long for any number of examples.
  ],
)
def test_the_fastest_micro_batches(size, chip, length, micro_batch):
  config = dataclasses.replace(AlbertConfig.from_name(size), num_hidden_layers=3)
  shape = StepShape(per_core_batch_size=32, max_seq_length=length)
  chosen = plan.fastest_micro_batches(config, shape, CHIPS[chip])
  assert (chosen.per_core_batch_size, chosen.examples) == (micro_batch, 32)


def test_what_fits_instead():
  large = ["--flagfile=recipes/albert_base_v1.flags", "--topology=v3:2x2", "--estimate_only"]
  commands = [large, [*large, "--gradient_accumulation_steps=0"]]
  instead, taken = run_script("compile_for_tpu", commands)
  assert "It does NOT fit: 129.19 GiB ± 16% of 15.48 GiB a core" in instead.stdout
  assert "with --gradient_accumulation_steps=16: 8.29 GiB, fits" in instead.stdout
  assert "32 x 16 a core" in taken.stdout
  assert "125,000 steps: at least" in taken.stdout


def test_another_share_of_masks_has_its_predictions():
  commands = [[*BATCH, "--estimate_only", f"--masked_lm_prob={share}"] for share in (0.3, 0.4)]
  for predictions, run in zip((154, 205), run_script("compile_for_tpu", commands), strict=True):
    assert f" {predictions} predictions," in run.stdout, run


def test_bad_input():
  cases = {
    "v3:16x16": ["--size=base", "--topology=v3:3x3", "--train_batch_size=64"],
    "v6e:2x2": ["--size=base", "--topology=v9:2x2", "--train_batch_size=64"],
    "--size": ["--topology=v3:2x2", "--train_batch_size=64"],
    "Use 8": ["--size=base", "--topology=v3:2x2", "--train_batch_size=9"],
    "max_position": [*BATCH, "--max_seq_length=1024"],
  }
  commands = [["--estimate_only", *arguments] for arguments in cases.values()]
  for message, run in zip(cases, run_script("compile_for_tpu", commands), strict=True):
    assert (run.status, message in run.stderr) == (2, True), run


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
  reason="needs jax and libtpu: the extra tpu-compile",
)
def test_a_real_compile():
  flags = ("--size=tiny", "--topology=v3:2x2", "--train_batch_size=16", "--max_seq_length=16")
  done = run_command("tpu_scripts/compile_for_tpu.py", *flags, "--max_predictions_per_seq=4")
  assert done.returncode == 0, done.stderr
  assert "[compiler]" in done.stdout
