"""Parameter groups: each variable in exactly one, and layer-wise rates."""

import pytest

from albert_tf.errors import UserError
from albert_tf.optim.groups import assign_decay, layerwise_multipliers


def test_leftovers_and_doubles_are_listed():
  with pytest.raises(UserError, match=r"lora/A \(no group\); x/bias/kernel \(decayed, excluded\)"):
    assign_decay(["bert/pooler/dense/kernel", "lora/A", "x/bias/kernel"])


def test_layerwise_multipliers_fall_with_depth():
  block = "bert/encoder/transformer/group_{}/inner_group_0/ffn_1/intermediate/dense/kernel"
  bottom = ["bert/embeddings/word_embeddings", "bert/encoder/embedding_hidden_mapping_in/kernel"]
  names = [*bottom, *map(block.format, (0, 1, 10)), "bert/pooler/dense/kernel", "output_weights"]
  got = layerwise_multipliers(names, layer_decay=0.5)
  assert list(got.values()) == [0.5**4, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0, 1.0]
  with pytest.raises(UserError, match="layer_decay"):
    layerwise_multipliers(names, layer_decay=0.0)
