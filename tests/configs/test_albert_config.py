"""AlbertConfig: strict reading, checks, round trips, and parameter counts of all sizes and tables of the paper."""

import dataclasses

import pytest
from support.commands.script_runs import run_command

from albert_tf.configs import SIZES, AlbertConfig, ModelChoice
from albert_tf.errors import UserError

SMALL = {
  "vocab_size": 7,
  "embedding_size": 4,
  "hidden_size": 6,
  "num_hidden_layers": 5,
  "num_attention_heads": 3,
  "intermediate_size": 8,
}


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
def test_json_round_trip(sharing, tmp_path):
  config = AlbertConfig(**SMALL, sharing=sharing, hidden_act="gelu_exact", layer_norm_eps=1e-6)
  path = tmp_path / "albert_config.json"
  path.write_text(config.to_json_string())
  assert AlbertConfig.from_json_file(str(path)) == config
  if sharing in ("all", "none"):
    again = AlbertConfig.from_dict(config.to_huggingface_dict())
    assert again.param_count() == config.param_count()
    assert dataclasses.replace(again, num_hidden_groups=1, sharing=sharing) == config
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
    ({"hidden_sise": 6}, "hidden_sise"),
    ({"model_type": "bert"}, r"model_type='bert'"),
    ({"num_labels": 3}, "num_labels"),  # Hugging Face's key without Hugging Face's marks.
    ({"hidden_size": 7}, "Received: 7 and 3"),
    ({"num_hidden_groups": 6}, "Received: 6 and 5"),
    ({"num_hidden_groups": 2, "sharing": "ffn"}, "Received: 2 with sharing=ffn"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers .*1024.*Received: 1000000000"),
    (
      {"hidden_size": 3 << 14, "num_hidden_layers": 1000, "sharing": "none"},
      "Received: .*hidden_size=49152",
    ),
  ],
)
def test_bad_values_say_what_was_received(changes, message):
  with pytest.raises(UserError, match=message):
    AlbertConfig.from_dict({**SMALL, **changes})


def test_missing_key_and_unknown_name():
  bert = {key: value for key, value in SMALL.items() if key != "embedding_size"}
  with pytest.raises(UserError, match="embedding_size"):
    AlbertConfig.from_dict(bert)
  with pytest.raises(UserError, match=r"base.*Received: 'huge'"):
    AlbertConfig.from_name("huge")


def test_known_unused_keys_are_accepted():
  unused = {"down_scale_factor": 1, "gap_size": 0, "layers_to_keep": [], "net_structure_type": 0}
  huggingface = {"architectures": ["AlbertForMaskedLM"], "model_type": "albert"}
  huggingface |= {"num_labels": 3, "position_embedding_type": "absolute"}
  for keys in (unused, unused | huggingface):
    assert AlbertConfig.from_dict(SMALL | keys) == AlbertConfig(**SMALL)


def test_another_depth_needs_one_block_for_all_layers():
  config = AlbertConfig(**SMALL)
  assert config.at_depth(40) == dataclasses.replace(config, num_hidden_layers=40)
  for changes in ({"sharing": "ffn"}, {"num_hidden_groups": 2}, {"inner_group_num": 2}):
    other = dataclasses.replace(config, **changes)
    assert other.at_depth(None) == other.at_depth(other.num_hidden_layers) == other
    with pytest.raises(UserError, match="Received: 3 layers"):
      other.at_depth(3)


def test_plain_names_are_version_2():
  for size in ("base", "large", "xlarge", "xxlarge"):
    assert AlbertConfig.from_name(size) == AlbertConfig.from_name(f"{size}_v2")
    v1, rate = AlbertConfig.from_name(f"{size}_v1"), 0.0 if size == "xxlarge" else 0.1
    assert v1.hidden_dropout_prob == v1.attention_probs_dropout_prob == rate
    without = dataclasses.replace(v1, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    assert without == AlbertConfig.from_name(size)


def test_a_file_says_what_differs_from_a_size(tmp_path):
  path = tmp_path / "narrow.json"
  path.write_text('{"sharing": "none", "embedding_size": 64}')
  choice = ModelChoice(size="base", albert_config_file=str(path), num_hidden_layers=3)
  expected = AlbertConfig.from_name(
    "base", vocab_size=8000, sharing="none", embedding_size=64, num_hidden_layers=3
  )
  assert choice.config(8000) == expected


def test_the_vocabulary_size_of_a_file_counts(tmp_path):
  path = tmp_path / "config.json"
  path.write_text('{"vocab_size": 99}')
  assert ModelChoice(size="tiny", albert_config_file=str(path)).config(8000).vocab_size == 99


COMMAND = "tpu_scripts/count_parameters.py"
# Encoder and pooler.
GOLDEN = {
  "tiny": 4_794_624,
  "small": 7_387_136,
  "base": 11_683_584,
  "large": 17_683_968,
  "xlarge": 58_724_864,
  "xxlarge": 222_595_584,
  "bert_base": 109_081_344,
  "bert_large": 334_607_360,
  "bert_xlarge": 1_275_291_648,
}


@pytest.mark.parametrize("name", SIZES)
def test_named_size(name):
  expected = GOLDEN[name.removesuffix("_v1").removesuffix("_v2")]
  assert AlbertConfig.from_name(name).param_count() == expected


# Tables 3 and 4: base, by embedding size and sharing.
TABLES_3_AND_4 = {
  (64, "all"): 9_681_408, (128, "all"): 11_683_584, (256, "all"): 15_687_936, (768, "all"): 31_114_752,
  (64, "none"): 87_648_000, (128, "none"): 89_650_176, (256, "none"): 93_654_528, (768, "none"): 109_081_344,
  (128, "attention"): 63_647_232, (128, "ffn"): 37_686_528, (768, "attention"): 83_078_400, (768, "ffn"): 57_117_696,
}  # fmt: skip


def test_paper_tables_3_and_4():
  for (embedding_size, sharing), expected in TABLES_3_AND_4.items():
    config = AlbertConfig.from_name("base", embedding_size=embedding_size, sharing=sharing)
    assert config.param_count() == expected, (embedding_size, sharing)


@pytest.mark.slow
def test_the_command_counts_all_sizes_or_one(tmp_path):
  table = run_command(COMMAND).stdout
  assert "| xxlarge | 12 | 4,096 | 128 | all | 201,379,840 | 222,595,584 | 223,158,450 |" in table
  path = tmp_path / "albert_config.json"
  path.write_text(AlbertConfig.from_name("base", sharing="ffn").to_json_string())
  assert "| 37,686,528 |" in run_command(COMMAND, f"--albert_config_file={path}").stdout
  path.write_text('{"sharing": "ffn"}')
  assert (
    "| 37,686,528 |" in run_command(COMMAND, "--size=base", f"--albert_config_file={path}").stdout
  )
