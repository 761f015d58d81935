"""Parameter groups: each variable in exactly one, and layer-wise rates."""

import pytest

from albert_tf.errors import UserError
from albert_tf.optim.build import OptimizerConfig
from albert_tf.optim.groups import (
  DEFAULT_GROUPS,
  ParameterGroup,
  assign_groups,
  layerwise_multipliers,
  variable_rules,
)
from albert_tf.optim.moments import MomentHyperparameters


def test_leftovers_and_doubles_are_listed():
  with pytest.raises(UserError, match=r"lora/A \(no group\); x/bias/kernel \(decayed, excluded\)"):
    assign_groups(["bert/pooler/dense/kernel", "lora/A", "x/bias/kernel"])


def test_a_group_can_be_added_with_its_own_rate():
  groups = (*DEFAULT_GROUPS, ParameterGroup(name="lora", pattern=r"^lora/", decay=False, adapt=True,
                                            learning_rate_multiplier=10.0))  # fmt: skip
  rules = variable_rules(["lora/A", "a/kernel"], groups=groups, multipliers={"lora/A": 0.5})
  assert (rules["lora/A"].decay, rules["lora/A"].adapt, rules["lora/A"].learning_rate_multiplier) == (
    False,
    True,
    5.0,
  )
  assert rules["a/kernel"].learning_rate_multiplier == 1.0


def test_layerwise_multipliers_fall_with_depth():
  block = "bert/encoder/transformer/group_{}/inner_group_0/ffn_1/intermediate/dense/kernel"
  bottom = ["bert/embeddings/word_embeddings", "bert/encoder/embedding_hidden_mapping_in/kernel"]
  names = [*bottom, *map(block.format, (0, 1, 10)), "bert/pooler/dense/kernel", "output_weights"]
  got = layerwise_multipliers(names, layer_decay=0.5)
  assert list(got.values()) == [0.5**4, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0, 1.0]
  with pytest.raises(UserError, match="layer_decay"):
    layerwise_multipliers(names, layer_decay=0.0)


def test_configurations_round_trip_and_refuse_unknown_keys():
  config = OptimizerConfig(name="adamw", learning_rate=3e-5, ema_decay=0.99, clip_norm=0.0, layer_decay=0.9)
  assert OptimizerConfig.from_config(config.get_config()) == config
  moments = MomentHyperparameters(beta_1=0.5, bias_correction=True)
  assert MomentHyperparameters.from_config(moments.get_config()) == moments
  with pytest.raises(UserError, match="beta_3"):
    OptimizerConfig.from_config({"beta_3": 1})
  with pytest.raises(UserError, match="one of lamb"):
    OptimizerConfig(name="lamp")
  with pytest.raises(UserError, match="beta_2"):
    OptimizerConfig(beta_2=1.0)
