"""Keras optimizers: the same arithmetic inside `fit`, and configurations that survive saving."""

import inspect
import re

import keras
import numpy as np
import pytest
from reference.lamb import lamb_step
from reference.muon import muon_step
import tensorflow as tf

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.keras_api.tasks import AlbertClassifier
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.optim.config import MomentHyperparameters, MuonHyperparameters, ScheduleConfig
from albert_tf.optim.keras_optimizers import (
  KERAS_EXCLUDED_PATTERN,
  AdamW,
  Lamb,
  Muon,
  WarmupPolynomialDecay,
)
from albert_tf.optim.muon import MUON_PATTERN
from albert_tf.optim.optimizer import assign_decay
from albert_tf.settings import fields_of


def linear_model(optimizer):
  model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="dense")])
  model.compile(optimizer=optimizer, loss="mse")
  return model


OF_A_MATRIX = {"matrices": "kernel", "matrix_rate_ratio": 0.5, "momentum": 0.8}


@pytest.mark.parametrize(
  ("optimizer_class", "options"), [(Lamb, {}), (AdamW, {}), (Muon, OF_A_MATRIX)]
)
def test_fit_makes_the_update_of_the_equation(optimizer_class, options):
  rng = np.random.default_rng(0)
  x, y = rng.standard_normal((6, 3)).astype("f"), rng.standard_normal((6, 4)).astype("f")
  model = linear_model(optimizer_class(0.1, weight_decay_rate=0.2, **options))
  kernel, bias = (weight.copy() for weight in model.get_weights())
  model.fit(x, y, batch_size=6, epochs=2, verbose=0)
  state = {"kernel": (kernel, 0.0, 0.0), "bias": (bias, 0.0, 0.0)}
  for t in (1, 2):
    error = 2.0 * (x @ state["kernel"][0] + state["bias"][0] - y) / y.size
    gradients = {"kernel": x.T @ error, "bias": error.sum(axis=0)}
    for name, (p, m, v) in state.items():
      zeros = np.zeros_like(p)
      decay = name == "kernel"
      if optimizer_class is Muon and name == "kernel":
        state[name] = *muon_step(p, gradients[name], m + zeros, lr=0.05, momentum=0.8, wd=0.2), v
        continue
      state[name] = lamb_step(p, gradients[name], m + zeros, v + zeros, lr=0.1, t=t, wd=0.2, decay=decay,
                              adapt=decay and optimizer_class is Lamb)  # fmt: skip
  np.testing.assert_allclose(model.get_weights()[0], state["kernel"][0], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(model.get_weights()[1], state["bias"][0], rtol=1e-4, atol=1e-5)


def test_fit_clips_the_true_gradient_on_any_number_of_replicas(mirrored_2):
  """Rows are looked up repeatedly and on both replicas, and the norm is above the limit."""
  rng = np.random.default_rng(1)
  x, y = rng.integers(0, 3, (8, 5)), rng.standard_normal((8, 5, 4)).astype("f")
  table = rng.standard_normal((3, 4)).astype("f")
  weights = []
  for strategy in (tf.distribute.OneDeviceStrategy("cpu:0"), mirrored_2):
    with strategy.scope():
      model = keras.Sequential([keras.Input((5,), dtype="int32"), keras.layers.Embedding(3, 4)])
      model.set_weights([table])
      # A large epsilon makes the update proportional to the clipped gradient.
      model.compile(
        AdamW(1e5, epsilon=1e3, weight_decay_rate=0.0, global_clipnorm=0.01), loss="mse"
      )
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    weights.append(model.get_weights()[0])
  error = 2.0 * (table[x] - y) / y.size
  gradient = np.stack([error[x == row].sum(axis=0) for row in range(3)])
  clipped = gradient * 0.01 / np.linalg.norm(gradient)
  for got in weights:  # m = 0.1 g, and η / ε = 100.
    np.testing.assert_allclose((table - got) / 10.0, clipped, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings(
  "ignore:__array__ implementation:DeprecationWarning"
)  # Keras on NumPy 2.
@pytest.mark.parametrize(
  ("optimizer_class", "options"),
  [(Lamb, {"exclude_from_layer_adaptation": "kernel"}), (Muon, OF_A_MATRIX)],
)
def test_configuration_round_trips_with_schedule(tmp_path, optimizer_class, options):
  schedule = WarmupPolynomialDecay(
    learning_rate=0.1, num_train_steps=9, num_warmup_steps=3, poly_power=2.0
  )
  optimizer = optimizer_class(schedule, beta_1=0.8, epsilon=1e-4, weight_decay_rate=0.3, bias_correction=True,
                              global_clipnorm=1.0, name="mine", **options)  # fmt: skip
  config = keras.optimizers.serialize(optimizer)
  twin = keras.optimizers.deserialize(config)
  assert type(twin) is optimizer_class
  assert twin.get_config() == optimizer.get_config()
  x, y = np.ones((4, 3), "f"), np.zeros((4, 4), "f")
  model = linear_model(optimizer)
  model.fit(x, y, batch_size=4, epochs=2, verbose=0)
  path = str(tmp_path / "model.keras")
  model.save(path)
  loaded = keras.models.load_model(path)
  for each in (model, loaded):  # The saved slots and step continue the run.
    each.fit(x, y, batch_size=4, epochs=1, verbose=0)
  for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
  ("kind", "settings"),
  [
    (WarmupPolynomialDecay, ScheduleConfig),
    (AdamW, MomentHyperparameters),
    (Lamb, MomentHyperparameters),
    (Muon, MomentHyperparameters),
    (Muon, MuonHyperparameters),
  ],
)
def test_editors_see_every_setting_with_its_default(kind, settings):
  """Written out, since an editor does not look into **kwargs."""
  parameters = dict(inspect.signature(kind).parameters)
  if settings is MomentHyperparameters:  # Keras' own name has another meaning.
    parameters["weight_decay"] = parameters.pop("weight_decay_rate")
  for field in fields_of(settings):
    default = inspect.Parameter.empty if field.is_needed else field.default
    assert parameters[field.name].default == default, field.name


def test_keras_own_weight_decay_is_refused():
  with pytest.raises(ValueError, match="weight_decay_rate"):
    AdamW(0.1, weight_decay=0.01)


@pytest.mark.parametrize("model_name", ["albert", "debiased", "layer_norm_free"])
def test_an_albert_is_excluded_and_scaled_as_in_the_training_loop(model_name):
  """Keras paths and checkpoint names give the same groups and trust ratios, whatever the model's name."""
  config = AlbertConfig(vocab_size=11, embedding_size=4, hidden_size=6, num_hidden_layers=4, num_attention_heads=2,
                        intermediate_size=10, num_hidden_groups=2, inner_group_num=2,
                        max_position_embeddings=8)  # fmt: skip
  model = AlbertForPreTraining(config, name=model_name)
  named = named_variables(model)
  names = {id(variable): name for name, variable in named.items()}
  decays = assign_decay(named)
  variables = {names[id(compat.raw_variable(v))]: v for v in model.trainable_variables}
  paths = {name: f"{model_name}/{compat.variable_path(v)}" for name, v in variables.items()}
  assert paths.keys() == named.keys()
  for name, path in paths.items():
    assert decays[name] == (not re.search(KERAS_EXCLUDED_PATTERN, path)), (name, path)
    assert bool(re.search(MUON_PATTERN, name)) == bool(re.search(MUON_PATTERN, path)), path


SMALL = {"num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 11}


@pytest.mark.stack
def test_muon_takes_the_matrices_of_the_blocks_and_none_of_a_frozen_block():
  head = {"num_labels": 3}
  model = AlbertClassifier(AlbertConfig.from_name("tiny", **SMALL), head_options=head)
  others = Muon(1e-3).with_two_moments(model.trainable_variables)
  with_two = {id(compat.raw_variable(variable)) for variable in others}
  named = named_variables(model)
  one_slot = {name for name, variable in named.items() if id(variable) not in with_two}
  # Query, key, value, output; two of the feed-forward.
  assert len(one_slot) == 6
  assert all(name.endswith("kernel") and "/group_0/" in name for name in one_slot)

  model.encoder.trainable = False
  with pytest.raises(UserError, match=r"Received: 2 trained variables.*AdamW"):
    Muon(1e-3).build(model.trainable_variables)


@pytest.mark.parametrize(
  ("settings", "received"),
  [
    ({"matrix_rate_ratio": 0.0}, "matrix_rate_ratio .*Received: 0.0"),
    ({"matrix_rate_ratio": -1.0}, "matrix_rate_ratio .*Received: -1.0"),
    ({"momentum": 1.0}, "momentum .*Received: 1.0"),
  ],
)
def test_settings_of_muon_are_checked(settings, received):
  with pytest.raises(UserError, match=received):
    Muon(1e-3, **settings)


def test_groups_are_of_whole_names():
  """A head named "debiased" decays; its bias does not."""
  decays = {"debiased/kernel": True, "debiased/bias": False}
  decays |= {"a/output_bias": False, "LayerNorm_1/gamma": False}
  assert assign_decay(decays) == decays
