"""The update equations and schedules against NumPy, the original's recorded steps and rates, and TensorFlow Addons."""

import numpy as np
import pytest
from reference.lamb import lamb_step, rate
from support.goldens import golden, golden_checkpoint
from support.stacks import needs_host_xla, slow_by_default
import tensorflow as tf

from albert_tf import compat
from albert_tf.errors import UserError
from albert_tf.optim.config import (
  MomentHyperparameters,
  OptimizerConfig,
  ScheduleConfig,
)
from albert_tf.optim.lamb import lamb_update, rate_after_steps, trust_ratio
from albert_tf.optim.optimizer import assign_decay, build_optimizer


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(
  ("decay", "adapt"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_lamb_equals_numpy(bias_correction, decay, adapt):
  p, g, m, v = np.random.default_rng(1).standard_normal((4, 3, 5)).astype(np.float32)
  v = np.square(v)
  hyperparameters = MomentHyperparameters(beta_1=0.8, beta_2=0.95, epsilon=1e-3, weight_decay=0.3,
                                          bias_correction=bias_correction)  # fmt: skip
  got = lamb_update(p, g, m, v, learning_rate=0.02, step=4, hyperparameters=hyperparameters, decay=decay,
                    adapt=adapt)  # fmt: skip
  want = lamb_step(p, g, m, v, lr=0.02, t=4, beta_1=0.8, beta_2=0.95, eps=1e-3, wd=0.3,
                   bias_correction=bias_correction, decay=decay, adapt=adapt)  # fmt: skip
  for a, b in zip(got[:3], want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(got.delta, p - want[0], rtol=1e-4, atol=1e-6)


def test_trust_ratio_is_one_where_a_norm_is_zero():
  zero, one = tf.zeros([2, 3]), tf.ones([2, 3])
  for weights, update in ((zero, one), (one, zero), (zero, zero)):
    assert float(trust_ratio(weights, update)) == 1.0
  assert float(trust_ratio(one * 3.0, one * 2.0)) == 1.5


def test_first_two_steps_equal_the_original():
  """The recorded slots give the clipped gradients: g₁ = m₁/(1-β₁), g₂ = (m₂ - β₁ m₁)/(1-β₁)."""
  lamb = golden("lamb")
  reader = tf.train.load_checkpoint(golden_checkpoint("tiny"))
  slots = ("/adam_m", "/adam_v")
  names = [name for name in lamb.names("gather/after_1/") if not name.endswith(slots)]
  assert len(names) == 31  # All but the word embeddings, whose steps are not recorded.
  variables = {name: tf.Variable(reader.get_tensor(name)) for name in names}
  optimizer = build_optimizer(OptimizerConfig(), variables)
  m_before = {name: np.zeros(variable.shape, np.float64) for name, variable in variables.items()}
  for t, learning_rate in enumerate(lamb["gather/learning_rate"][:2], start=1):
    after = {name: lamb[f"gather/after_{t}/{name}"] for name in names}
    m_after = {name: lamb[f"gather/after_{t}/{name}/adam_m"].astype(np.float64) for name in names}
    gradients = {name: (m_after[name] - 0.9 * m_before[name]) / 0.1 for name in names}
    gradients = {name: tf.constant(g, tf.float32) for name, g in gradients.items()}
    optimizer.apply(gradients, learning_rate)
    for name in names:
      place = f"{name} after {t}"
      np.testing.assert_allclose(variables[name], after[name], rtol=0, atol=3e-7, err_msg=place)
      v, recorded = optimizer.slots()[f"{name}/adam_v"], lamb[f"gather/after_{t}/{name}/adam_v"]
      np.testing.assert_allclose(v, recorded, rtol=1e-4, atol=1e-12, err_msg=place)
    m_before = m_after


def test_groups_of_the_original():
  """Decay and adaptation of a checkpoint's 32 variables are those of the original's exclusion list."""
  reader = tf.train.load_checkpoint(golden_checkpoint("tiny"))
  names = [name for name in reader.get_variable_to_shape_map() if name != "global_step"]
  excluded = {name for name in names if "LayerNorm" in name or "bias" in name}
  assert {name for name, decays in assign_decay(names).items() if not decays} == excluded
  assert len(excluded) == 19
  with pytest.raises(UserError, match="adapter/A; x/gamma"):
    assign_decay(["bert/pooler/dense/kernel", "adapter/A", "x/gamma", "x/bias/kernel"])


@pytest.mark.skipif(
  compat.STACK == "addons", reason="the message is for stacks without TensorFlow Addons"
)
def test_tfa_lamb_elsewhere_is_a_user_error():
  with pytest.raises(UserError, match=r"Received: TensorFlow .*--optimizer=lamb --bias_correction"):
    build_optimizer(OptimizerConfig(name="tfa_lamb"), {"kernel": tf.Variable([1.0])})


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


def test_a_warm_up_longer_than_the_run_is_refused_with_one_that_fits():
  with pytest.raises(UserError, match=r"num_warmup_steps=3125, num_train_steps=1000.*steps=25\."):
    OptimizerConfig(num_train_steps=1000)


def test_original_schedule_equals_the_recorded_rates():
  lamb = golden("lamb")
  config = ScheduleConfig(learning_rate=float(lamb["hyper/lr"]), num_train_steps=int(lamb["hyper/total"]),
                          num_warmup_steps=int(lamb["hyper/warm"]), schedule="original")  # fmt: skip
  recorded = lamb["onehot/learning_rate"]
  np.testing.assert_allclose(
    rate_after_steps(np.arange(len(recorded)), config), recorded, rtol=1e-6
  )


# ------------------------------------------------------------------ the training loop's optimizer


def initial_values():
  rng = np.random.default_rng(0)
  return {
    "transformer/kernel": rng.standard_normal((3, 5)).astype("f"),
    "transformer/bias": rng.standard_normal(5).astype("f"),
  }


@needs_host_xla
@pytest.mark.parametrize(
  "name", ["lamb", *(pytest.param(name, marks=slow_by_default) for name in ("adamw", "muon"))]
)
def test_compiles_with_xla_to_the_same_update(name):
  """A TPU compiles the whole step, `use_xla` the update alone: neither may need the host."""
  results = []
  for whole_step, update_alone in ((False, False), (True, False), (False, True)):
    variables = {key: tf.Variable(value) for key, value in initial_values().items()}
    config = OptimizerConfig(name=name, bias_correction=True, num_warmup_steps=2)
    optimizer = build_optimizer(config, variables, use_xla=update_alone)

    @tf.function(jit_compile=whole_step)
    def step(variables=variables, optimizer=optimizer, config=config):
      gradients = {key: tf.sin(v) for key, v in variables.items()}
      return optimizer.apply(gradients, rate_after_steps(optimizer.step, config))

    for _ in range(3):
      step()
    results.append({**variables, **optimizer.slots()})
  for compiled in results[1:]:
    for key, value in results[0].items():
      np.testing.assert_allclose(compiled[key], value, rtol=1e-5, atol=1e-7, err_msg=key)


def test_norms_are_those_of_the_weights_and_of_what_was_applied():
  variables = {name: tf.Variable(value) for name, value in initial_values().items()}
  optimizer = build_optimizer(OptimizerConfig(), variables)
  before = np.concatenate([value.ravel() for value in initial_values().values()])
  norms = optimizer.apply({name: tf.ones_like(value) for name, value in variables.items()}, 0.5)
  after = np.concatenate([variable.numpy().ravel() for variable in variables.values()])
  np.testing.assert_allclose(norms.weight_norm, np.linalg.norm(before), rtol=1e-6)
  np.testing.assert_allclose(norms.update_norm, np.linalg.norm(before - after), rtol=1e-5)
