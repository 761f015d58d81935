"""Prints the parameter counts of the ALBERT paper's tables, or of one configuration; nothing is built.

python tpu_scripts/count_parameters.py
python tpu_scripts/count_parameters.py --size base --sharing attention --embedding_size 768
python tpu_scripts/count_parameters.py --albert_config_file albert_config.json
"""

from collections.abc import Sequence

from absl import app, flags
import model_flags

from albert_tf.configs import (
  SHARING_KINDS,
  AlbertConfig,
  count_head_parameters,
  count_parameters,
  named_sizes,
)
from albert_tf.errors import UserError, exit_on_user_error

flags.adopt_module_key_flags(model_flags)
_SIZE = flags.DEFINE_string("size", "", "A named size; without it and a file: the paper's tables.")
_CONFIG = flags.DEFINE_string(
  "albert_config_file", "", "Configuration of this project, the original or Hugging Face."
)

_HEADINGS = {"all": "all-shared", "attention": "shared-attention", "ffn": "shared-FFN", "none": "not-shared"}
# What the paper prints, in millions. It counts xlarge and xxlarge higher than their architecture has.
_TABLE_1 = {
  "bert_base": "108M",
  "bert_large": "334M",
  "bert_xlarge": "1270M",
  "base": "12M",
  "large": "18M",
  "xlarge": "60M",
  "xxlarge": "235M",
}
# ALBERT-base by embedding size and sharing.
_TABLE_3_AND_4 = {
  (64, "all"): "10M",
  (128, "all"): "12M",
  (256, "all"): "16M",
  (768, "all"): "31M",
  (128, "attention"): "64M",
  (768, "attention"): "83M",
  (128, "ffn"): "38M",
  (768, "ffn"): "57M",
  (64, "none"): "87M",
  (128, "none"): "89M",
  (256, "none"): "93M",
  (768, "none"): "108M",
}
# Appendix A.1, A.2: ALBERT-large of other depths and of three layers of other widths; ALBERT-xxlarge of two depths.
_TABLE_11 = dict.fromkeys((1, 3, 6, 12, 24, 48), "18M")
_TABLE_12 = {1024: "18M", 2048: "60M", 4096: "225M", 6144: "499M"}
_TABLE_13 = dict.fromkeys((12, 24), "235M")
_BOTH_HEADS = ("masked_lm", "sentence_order")


def _row(*cells: object) -> str:
  return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
  return ["", title, "", _row(*header), _row(*["---"] * len(header)), *[_row(*row) for row in rows]]


def paper_tables() -> list[str]:
  """Tables 1, 3, 4 and 11 to 13 with exact counts of encoder and pooler beside what the paper prints."""
  sizes = []
  for name, printed in _TABLE_1.items():
    config = AlbertConfig.from_name(name)
    shape = (config.num_hidden_layers, config.hidden_size, config.embedding_size, _HEADINGS[config.sharing])
    counts = (count_parameters(config).block, config.param_count(), config.param_count(heads=_BOTH_HEADS))
    sizes.append((name, *shape, *counts, printed))
  header = (
    "model",
    "layers",
    "H",
    "E",
    "sharing",
    "one block",
    "encoder + pooler",
    "with both heads",
    "paper",
  )
  widths = [
    (_HEADINGS[sharing], e, *_base(e, sharing)) for sharing in ("none", "all") for e in (64, 128, 256, 768)
  ]
  kinds = [(e, _HEADINGS[sharing], *_base(e, sharing)) for e in (768, 128) for sharing in SHARING_KINDS]
  depths = [
    (n, AlbertConfig.from_name("large", num_hidden_layers=n).param_count(), m) for n, m in _TABLE_11.items()
  ]
  three = AlbertConfig.from_name("large", num_hidden_layers=3)
  wide = [(h, three.resized(hidden_size=h).param_count(), m) for h, m in _TABLE_12.items()]
  deep = [
    (n, AlbertConfig.from_name("xxlarge", num_hidden_layers=n).param_count(), m) for n, m in _TABLE_13.items()
  ]
  counted = ("encoder + pooler", "paper")
  return [
    *_table("Table 1: configurations", header, sizes),
    *_table("Table 3: embedding size of ALBERT-base", ("sharing", "E", "encoder + pooler", "paper"), widths),
    *_table("Table 4: sharing in ALBERT-base", ("E", "sharing", "encoder + pooler", "paper"), kinds),
    *_table("Table 11: layers of ALBERT-large", ("layers", *counted), depths),
    *_table("Table 12: hidden size of ALBERT-large with 3 layers", ("H", *counted), wide),
    *_table("Table 13: layers of ALBERT-xxlarge", ("layers", *counted), deep),
  ]


def _base(embedding_size: int, sharing: str) -> tuple[int, str]:
  """Parameters of ALBERT-base with this embedding size and sharing, and what the paper prints."""
  config = AlbertConfig.from_name("base", embedding_size=embedding_size, sharing=sharing)
  return config.param_count(), _TABLE_3_AND_4[embedding_size, sharing]


def one_configuration(config: AlbertConfig) -> list[str]:
  """The parts of one configuration."""
  parts = count_parameters(config)
  rows = [
    ("embeddings", 1, parts.embeddings),
    ("mapping E to H", int(parts.mapping > 0), parts.mapping),
    ("attention + LayerNorm", parts.attention_copies, parts.attention),
    ("feed-forward + LayerNorm", parts.ffn_copies, parts.ffn),
    ("pooler", 1, parts.pooler),
    ("encoder + pooler", "", parts.total),
    *((f"head: {head}", 1, count_head_parameters(config, head)) for head in _BOTH_HEADS),
    ("with both heads", "", config.param_count(heads=_BOTH_HEADS)),
  ]
  return _table("Parameters", ("part", "copies", "parameters of one"), rows)[1:]


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"Only flags are understood. Received: {' '.join(argv[1:])}. See --help.")
  if _SIZE.value and _CONFIG.value:
    raise UserError("Only one of --size and --albert_config_file can be given. Received: both.")
  if not _SIZE.value and not _CONFIG.value:
    if changes := model_flags.model_changes():
      raise UserError(
        f"What a flag changes belongs to one size. Received: --{', --'.join(changes)} and no size. "
        f"Add --size, one of {', '.join(named_sizes())}."
      )
    print("\n".join(paper_tables()[1:]))
    return
  config = AlbertConfig.from_name(_SIZE.value) if _SIZE.value else AlbertConfig.from_json_file(_CONFIG.value)
  print("\n".join(one_configuration(model_flags.changed(config))))


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
