"""Prints the parameter counts of the named sizes, or of one configuration; nothing is built.

Example:
  python tpu_scripts/count_parameters.py
  python tpu_scripts/count_parameters.py --size=base --sharing=attention --embedding_size=768
  python tpu_scripts/count_parameters.py --albert_config_file=albert_config.json
"""

from collections.abc import Sequence

from albert_tf import commands
from albert_tf.configs import AlbertConfig, ModelChoice, count_head_parameters, count_parameters, named_sizes
from albert_tf.errors import UserError

commands.define_flags(ModelChoice)
_HEADS = ("masked_lm", "sentence_order")


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
  """A Markdown table."""
  lines = [header, ["---"] * len(header), *rows]
  cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in line] for line in lines]
  return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def all_sizes() -> str:
  """Every named size, with the numbers that table 1 of the paper has."""
  rows = []
  for name in named_sizes():
    config = AlbertConfig.from_name(name)
    shape = (config.num_hidden_layers, config.hidden_size, config.embedding_size, config.sharing)
    rows.append(
      (name, *shape, count_parameters(config).block, config.param_count(), config.param_count(heads=_HEADS))
    )
  header = ("size", "layers", "H", "E", "shared", "one block", "encoder + pooler", "with both heads")
  return _table(header, rows)


def one_configuration(config: AlbertConfig) -> str:
  """The parts of one configuration."""
  parts = count_parameters(config)
  rows = [
    ("embeddings", 1, parts.embeddings),
    ("mapping E to H", int(parts.mapping > 0), parts.mapping),
    ("attention + LayerNorm", parts.attention_copies, parts.attention),
    ("feed-forward + LayerNorm", parts.ffn_copies, parts.ffn),
    ("pooler", 1, parts.pooler),
    ("encoder + pooler", "", parts.total),
    *((f"head: {head}", 1, count_head_parameters(config, head)) for head in _HEADS),
    ("with both heads", "", config.param_count(heads=_HEADS)),
  ]
  return _table(("part", "copies", "parameters of one"), rows)


def main() -> None:
  model = commands.from_flags(ModelChoice)
  if model.size or model.albert_config_file:
    print(one_configuration(model.config()))
  elif model.changes:
    raise UserError("A changed model begins with --size or --albert_config_file. Received: neither.")
  else:
    print(all_sizes())


if __name__ == "__main__":
  commands.run(main)
