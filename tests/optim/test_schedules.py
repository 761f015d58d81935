"""Schedules against a NumPy twin and the original's recorded rates."""

import numpy as np
import pytest
from reference.schedules import rate
from support.goldens import golden

from albert_tf.errors import UserError
from albert_tf.optim.config import ScheduleConfig, scale_learning_rate
from albert_tf.optim.lamb import rate_after_steps

CASES = [
  {"total": 20, "warmup": 5},
  {"total": 20, "warmup": 0},
  {"total": 20, "warmup": 20},
  {"total": 30, "warmup": 4, "start": 7},
  {"total": 30, "warmup": 4, "power": 2.0, "end": 0.0002},
  {"total": 30, "warmup": 4, "original": True},
  {"total": 30, "warmup": 4, "start": 7, "original": True, "power": 0.5},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_numpy_for_every_update(case):
  config = ScheduleConfig(
    learning_rate=0.002,
    num_train_steps=case["total"],
    num_warmup_steps=case["warmup"],
    start_warmup_step=case.get("start", 0),
    poly_power=case.get("power", 1.0),
    end_learning_rate=case.get("end", 0.0),
    schedule="original" if case.get("original") else "continuous",
  )
  t = np.arange(1, case["total"] + 5)
  want = [rate(int(i), peak=0.002, **case) for i in t]
  got = rate_after_steps(t - 1, config).numpy()
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-9)
  assert (got >= 0).all()
  if not case.get("original") and case["warmup"]:
    assert got.max() == pytest.approx(0.002)


def test_original_schedule_equals_the_recorded_rates():
  lamb = golden("lamb")
  config = ScheduleConfig(learning_rate=float(lamb["hyper/lr"]), num_train_steps=int(lamb["hyper/total"]),
                          num_warmup_steps=int(lamb["hyper/warm"]), schedule="original")  # fmt: skip
  recorded = lamb["onehot/learning_rate"]
  np.testing.assert_allclose(rate_after_steps(np.arange(len(recorded)), config), recorded, rtol=1e-6)


def test_scaling_rules():
  assert scale_learning_rate(0.00176, 4096, rule="sqrt") == 0.00176
  assert scale_learning_rate(0.00176, 1024, rule="sqrt") == pytest.approx(0.00088)
  assert scale_learning_rate(0.00176, 1024, rule="linear") == pytest.approx(0.00044)
  assert scale_learning_rate(0.00176, 1024, rule="none") == 0.00176


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"num_warmup_steps": 101}, "warm-up must end within the run"),
    ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
  ],
)
def test_bad_settings_are_refused(change, message):
  with pytest.raises(UserError, match=message):
    ScheduleConfig(**({"learning_rate": 0.1, "num_train_steps": 100} | change))
