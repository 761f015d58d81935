"""Every named size and every table of the paper has its exact parameter count here."""

import pytest

from albert_tf.configs import AlbertConfig, count_parameters, named_sizes

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


@pytest.mark.parametrize("name", named_sizes())
def test_named_size(name):
  assert AlbertConfig.from_name(name).param_count() == GOLDEN[name.removesuffix("_v1").removesuffix("_v2")]


@pytest.mark.parametrize(
  ("size", "block", "masked_lm", "sentence_order", "everything"),
  [
    ("base", 7_087_872, 128_688, 1_538, 11_813_810),
    ("large", 12_596_224, 161_456, 2_050, 17_847_474),
    ("xlarge", 50_358_272, 292_528, 4_098, 59_021_490),
    ("xxlarge", 201_379_840, 554_672, 8_194, 223_158_450),
  ],
)
def test_release_table(size, block, masked_lm, sentence_order, everything):
  config = AlbertConfig.from_name(size)
  parts = {part: one for part, (_, one) in count_parameters(config).items()}
  assert parts["attention + LayerNorm"] + parts["feed-forward + LayerNorm"] == block
  assert parts["embeddings"] == 3_906_048
  assert (parts["head: masked_lm"], parts["head: sentence_order"]) == (masked_lm, sentence_order)
  assert config.param_count(heads=("masked_lm", "sentence_order")) == everything


@pytest.mark.parametrize(  # Tables 3 and 4: base, by embedding size and sharing.
  ("embedding_size", "sharing", "expected"),
  [
    (64, "all", 9_681_408),
    (128, "all", 11_683_584),
    (256, "all", 15_687_936),
    (768, "all", 31_114_752),
    (64, "none", 87_648_000),
    (128, "none", 89_650_176),
    (256, "none", 93_654_528),
    (768, "none", 109_081_344),
    (128, "attention", 63_647_232),
    (128, "ffn", 37_686_528),
    (768, "attention", 83_078_400),
    (768, "ffn", 57_117_696),
  ],
)
def test_paper_tables_3_and_4(embedding_size, sharing, expected):
  config = AlbertConfig.from_name("base", embedding_size=embedding_size, sharing=sharing)
  assert config.param_count() == expected
