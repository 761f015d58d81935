"""Prints the parameter counts of the named sizes, or of one configuration; nothing is built.

Example:
  python tpu_scripts/count_parameters.py
  python tpu_scripts/count_parameters.py --size=base --sharing=attention --embedding_size=768
  python tpu_scripts/count_parameters.py --albert_config_file=albert_config.json
"""

from albert_tf import commands
from albert_tf.configs import HEADS, AlbertConfig, ModelChoice, count_parameters, named_sizes
from albert_tf.errors import UserError

commands.define_flags(ModelChoice)


def all_sizes() -> str:
  """Every named size, with the numbers that table 1 of the paper has."""
  rows = []
  for name in named_sizes():
    config = AlbertConfig.from_name(name)
    shape = (config.num_hidden_layers, config.hidden_size, config.embedding_size, config.sharing)
    block = sum(one for part, (_, one) in count_parameters(config).items() if part.endswith("LayerNorm"))
    rows.append((name, *shape, block, config.param_count(), config.param_count(heads=HEADS)))
  header = ("size", "layers", "H", "E", "shared", "one block", "encoder + pooler", "with both heads")
  return commands.markdown_table(header, *rows)


def one_configuration(config: AlbertConfig) -> str:
  """The parts of one configuration."""
  return commands.markdown_table(
    ("part", "copies", "parameters of one"),
    *((part, *numbers) for part, numbers in count_parameters(config).items()),
    ("encoder + pooler", "", config.param_count()),
    ("with both heads", "", config.param_count(heads=HEADS)),
  )


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
