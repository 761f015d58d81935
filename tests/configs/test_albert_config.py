"""AlbertConfig: strict reading, checks, round trips, where shared parameters live."""

import json

import pytest

from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.errors import UserError

SMALL = {
  "vocab_size": 7,
  "embedding_size": 4,
  "hidden_size": 6,
  "num_hidden_layers": 5,
  "num_attention_heads": 3,
  "intermediate_size": 8,
}


@pytest.mark.parametrize("name", named_sizes())
@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
def test_json_round_trip(name, sharing, tmp_path):
  config = AlbertConfig.from_name(name, sharing=sharing, hidden_act="gelu_exact", layer_norm_eps=1e-6)
  path = tmp_path / "albert_config.json"
  path.write_text(config.to_json_string())
  assert AlbertConfig.from_json_file(str(path)) == config
  assert AlbertConfig.from_dict(config.to_dict()) == config
  if sharing in ("all", "none"):
    again = AlbertConfig.from_dict(config.to_huggingface_dict())
    assert again.param_count() == config.param_count()
    assert again.replace(num_hidden_groups=1, sharing=sharing) == config
  else:
    with pytest.raises(UserError, match="expand_sharing"):
      config.to_huggingface_dict()


@pytest.mark.parametrize(
  ("huggingface", "given", "expected"),
  [
    (True, "gelu", "gelu_exact"),
    (True, "gelu_new", "gelu"),
    (True, "gelu_pytorch_tanh", "gelu"),
    (False, "gelu", "gelu"),
    (False, "", "linear"),
    (False, None, "linear"),
    (False, "relu", "relu"),
  ],
)
def test_activation_names_by_source(huggingface, given, expected):
  values = {**SMALL, "hidden_act": given}
  assert AlbertConfig.from_dict(values, huggingface=huggingface).hidden_act == expected
  if huggingface:
    assert AlbertConfig.from_dict({**values, "model_type": "albert"}).hidden_act == expected


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"hidden_sise": 6}, "hidden_sise that it does"),
    ({"model_type": "bert"}, r"model_type='bert'"),
    ({"model_type": "albert", "position_embedding_type": "relative_key"}, "relative_key"),
    ({"num_labels": 3}, "num_labels"),  # Hugging Face's key without Hugging Face's marks.
    ({"hidden_size": 7}, "divisible.*Received: 7 and 3"),
    ({"vocab_size": 0}, "vocab_size must be at least 1"),
    ({"vocab_size": True}, "vocab_size must be of the type int"),
    ({"hidden_size": 6.0}, "hidden_size must be of the type int"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be at least 0"),
    ({"hidden_dropout_prob": "0.1"}, "must be of the type float"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps"),
    ({"hidden_act": "swish"}, "swish"),
    ({"sharing": "some"}, "sharing must be one of"),
    ({"num_hidden_groups": 6}, "Received: 6 and 5"),
    ({"num_hidden_groups": 2, "sharing": "ffn"}, "Received: 2 with sharing=ffn"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at least 1 and at most 1024"),
    ({"max_position_embeddings": 2**63}, "max_position_embeddings must be at least 1 and at most 65536"),
    (
      {"hidden_size": 3 * 2**14, "num_hidden_layers": 1000, "sharing": "none"},
      "at most 100 billion parameters",
    ),
  ],
)
def test_bad_values_say_what_was_received(changes, message):
  with pytest.raises(UserError, match=message):
    AlbertConfig.from_dict({**SMALL, **changes})


def test_missing_key_and_unknown_name_and_bad_file(tmp_path):
  bert = {key: value for key, value in SMALL.items() if key != "embedding_size"}
  with pytest.raises(UserError, match="without embedding_size"):
    AlbertConfig.from_dict(bert)
  with pytest.raises(UserError, match=r"base.*Received: 'huge'"):
    AlbertConfig.from_name("huge")
  with pytest.raises(TypeError, match="vocabsize"):
    AlbertConfig.from_name("base", vocabsize=3)
  with pytest.raises(UserError, match="must exist"):
    AlbertConfig.from_json_file(str(tmp_path / "none.json"))


def test_known_unused_keys_are_accepted():
  unused = {"down_scale_factor": 1, "gap_size": 0, "layers_to_keep": [], "net_structure_type": 0}
  huggingface = {
    "architectures": ["AlbertForMaskedLM"],
    "model_type": "albert",
    "num_labels": 3,
    "position_embedding_type": "absolute",
  }
  assert AlbertConfig.from_dict({**SMALL, **unused}) == AlbertConfig(**SMALL)
  assert AlbertConfig.from_dict({**SMALL, **unused, **huggingface}) == AlbertConfig(**SMALL)


def test_another_depth_needs_one_block_for_all_layers():
  config = AlbertConfig(**SMALL)
  assert config.at_depth(40) == config.replace(num_hidden_layers=40)
  for changes in ({"sharing": "ffn"}, {"num_hidden_groups": 2}, {"inner_group_num": 2}):
    other = config.replace(**changes)
    assert other.at_depth(None) == other.at_depth(other.num_hidden_layers) == other
    with pytest.raises(UserError, match=r"one block that all layers share. Received: 3 layers"):
      other.at_depth(3)


def test_plain_names_are_version_2_and_frozen():
  for size in ("base", "large", "xlarge", "xxlarge"):
    assert AlbertConfig.from_name(size) == AlbertConfig.from_name(f"{size}_v2")
    v1 = AlbertConfig.from_name(f"{size}_v1")
    assert v1.hidden_dropout_prob == v1.attention_probs_dropout_prob == (0.0 if size == "xxlarge" else 0.1)
    assert v1.replace(hidden_dropout_prob=0, attention_probs_dropout_prob=0) == AlbertConfig.from_name(size)
  with pytest.raises(AttributeError):
    AlbertConfig(**SMALL).hidden_size = 3
  assert json.loads(AlbertConfig(**SMALL).to_json_string())["hidden_size"] == 6


def test_another_width_brings_what_follows_from_it():
  """F = 4 H and H / 64 heads, but what is given counts; the size's own width changes nothing."""
  base = AlbertConfig.from_name("base")
  wide = base.resized(hidden_size=2048, num_hidden_layers=3)
  assert wide == base.replace(
    hidden_size=2048, num_hidden_layers=3, intermediate_size=8192, num_attention_heads=32
  )
  told = base.resized(hidden_size=2048, intermediate_size=100, num_attention_heads=16)
  assert told == base.replace(hidden_size=2048, intermediate_size=100, num_attention_heads=16)
  xlarge = AlbertConfig.from_name("xlarge")  # 16 heads of 128, as in the release.
  assert xlarge.resized(hidden_size=2048, num_hidden_layers=12) == xlarge.replace(num_hidden_layers=12)
  bert = AlbertConfig.from_name("bert_base")
  assert bert.resized(hidden_size=128).embedding_size == 128  # Nothing is factorized there.
  assert bert.resized(hidden_size=128, embedding_size=64).embedding_size == 64
  with pytest.raises(UserError, match=r"needs num_attention_heads too.* 100"):
    base.resized(hidden_size=100)
  assert base.resized(hidden_size=100, num_attention_heads=5).intermediate_size == 400
