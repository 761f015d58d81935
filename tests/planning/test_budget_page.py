"""The figures of docs/budget.md and docs/gpu.md are those of the planner, of measured steps and of their arithmetic."""

import pathlib
import re

import pytest
from support.commands.script_runs import read_flags

from albert_tf.configs import AlbertConfig
from albert_tf.planning import plan
from albert_tf.planning.chips import parse_topology
from albert_tf.planning.estimate import StepShape
from albert_tf.pretraining.settings import StepConfig

ROOT = pathlib.Path(__file__).parents[2]
BUDGET = (ROOT / "docs/budget.md").read_text(encoding="utf-8")
GPU = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
DATA = (ROOT / "docs/data.md").read_text(encoding="utf-8")

_BATCH = 4096
_MICRO_BATCH = 64
# Of 16 GB of novels and Wikipedia, 40 passes; docs/budget.md has their number for a GB.
_ROWS_OF_A_GB = 316e6 / 40 / 16
_V5E_CHIPS, _V5E_DOLLARS = 8, 1.2
_DOLLARS = {"H100 SXM": 3, "RTX 4090": 0.6}


def rows_of(page, first_cell):
  """The cells of the table rows whose first cell begins so."""
  lines = [line for line in page.splitlines() if line.startswith(f"| {first_cell}")]
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(text):
  return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def hours_of_cards():
  """Card → hours of a fast update at the two ratios of docs/gpu.md's table, the shorter first."""
  measured_ms = numbers(rows_of(GPU, "base, 512 × 64")[0][1])[0]
  h200_update = _BATCH / _MICRO_BATCH * measured_ms / 1000 / 3600
  cards = {row[0]: row for row in rows_of(GPU, "") if len(row) == 6 and "GB" in row[1]}
  products, memory = (float(cell) for cell in cards["H200"][2:4])
  return {
    name: sorted(h200_update * rate for rate in (products / float(row[2]), memory / float(row[3])))
    for name, row in cards.items()
  }


def in_hours(cell):
  found = numbers(cell)
  return [number * (24 if "days" in cell else 1) for number in found]


def test_hours_of_cards_are_the_measured_step_times_the_ratio_of_rates():
  expected = hours_of_cards()
  assert len(expected) == 6
  for name, updates in expected.items():
    [row] = rows_of(GPU, f"{name} |")
    for cell, num_updates in zip(row[4:6], (62_500, 125_000), strict=True):
      given = in_hours(cell)
      assert given == pytest.approx(
        [num_updates * hours for hours in updates[-len(given) :]], rel=0.02
      ), (name, cell)


@pytest.mark.parametrize("gigabytes", [1, 3, 16, 100])
def test_passes_over_a_text(gigabytes):
  [row] = rows_of(BUDGET, f"{gigabytes} GB")
  num_updates = numbers(row[2])[0]
  passes = num_updates * _BATCH / (gigabytes * _ROWS_OF_A_GB)
  assert numbers(row[3])[0] == pytest.approx(passes, rel=0.05)


@pytest.mark.parametrize("gigabytes", [1, 3])
def test_hours_and_dollars_of_a_text(gigabytes):
  [row] = rows_of(BUDGET, f"{gigabytes} GB")
  num_updates = numbers(row[2])[0]
  # The TPU by the planner.
  topology = parse_topology("v5e:2x4")
  shape = StepShape(
    per_core_batch_size=8, gradient_accumulation_steps=64, max_predictions_per_seq=154
  )
  seconds = plan.step_seconds(AlbertConfig.from_name("base_v2"), shape, topology.chip)
  hours = [num_updates * value / 3600 for value in (seconds.low, seconds.high)]
  dollars = [_V5E_CHIPS * _V5E_DOLLARS * value for value in hours]
  assert numbers(row[4]) == pytest.approx(hours + dollars, rel=0.03)
  # The cards by the table of docs/gpu.md.
  for cell, name in ((row[5], "H100 SXM"), (row[6], "RTX 4090")):
    hours = [num_updates * value for value in hours_of_cards()[name]]
    time, _, price = cell.partition(", ")
    assert in_hours(time) == pytest.approx(hours, rel=0.02)
    assert numbers(price) == pytest.approx([_DOLLARS[name] * value for value in hours], rel=0.02)


def test_commands_for_cards_have_64_examples_at_a_time():
  """The measured micro-batch, on one card and on two hosts of eight."""
  commands = re.findall(r"run_pretrain\.py ((?:.*\\\n *)*.*)", GPU)
  arguments = [re.sub(r"\\\n", " ", command).replace("'", "").split() for command in commands]
  for values, num_cards in zip(read_flags("run_pretrain", arguments), (1, 16), strict=True):
    step = StepConfig(
      global_batch_size=values["train_batch_size"],
      gradient_accumulation_steps=values["gradient_accumulation_steps"],
    )
    assert step.micro_batch_size(num_cards) == _MICRO_BATCH
    assert values["eval_batch_size"] % num_cards == 0
    # Reports every 10 to 20 seconds, checkpoints within half an hour.
    update = values["gradient_accumulation_steps"] * 0.0429
    assert 10 <= values["iterations_per_loop"] * update < 20
    assert values["save_checkpoints_steps"] * update < 1800


def test_one_page_says_how_many_passes_are_too_many():
  assert "budget.md#how-many-passes-over-the-text-are-too-many" in DATA
