"""Every second since the first start belongs to one category, over kills and restarts."""

import pytest

from albert_tf.training.reporting import goodput
from albert_tf.training.reporting.goodput import CATEGORIES, Goodput


class Clock:
  """Stands in for the module `time`."""

  def __init__(self):
    self.now = 1000.0

  def time(self):
    return self.now

  def monotonic(self):
    return self.now - 900


@pytest.fixture
def clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(goodput, "time", clock)
  return clock


def life(clock, *, at_checkpoint, marks):
  """A life that begins now; every mark is (category, seconds, of them waiting for input)."""
  ledger = Goodput(began=clock.now, at_checkpoint=at_checkpoint)
  for category, seconds, waited in marks:
    clock.now += seconds
    ledger.mark(category, waited=waited)
  return ledger


def test_what_follows_the_report_of_the_checkpoint_is_lost(clock):
  first = life(clock, at_checkpoint={}, marks=[("restart", 5, 0), ("compile", 7, 0), ("step", 20, 2)])
  at_checkpoint = first.fields()
  clock.now += 10
  first.mark("step", waited=1)
  clock.now += 40  # Killed, and nothing ran for a while.
  second = life(clock, at_checkpoint=at_checkpoint, marks=[("restart", 6, 0), ("step", 12, 0)])
  assert second.seconds == {
    **dict.fromkeys(CATEGORIES, 0.0),
    "restart": 11, "compile": 7, "step": 18 + 12, "input": 2, "lost": 50,
  }  # fmt: skip
  assert sum(second.seconds.values()) == clock.now - 1000
  assert second.fields()["goodput"] == pytest.approx(30 / 100)
  table = second.table().splitlines()
  assert table[0] == "0:01:40 since the first start:"
  assert table[1].split()[:3] == ["lost", "0:00:50", "50.0%"]
