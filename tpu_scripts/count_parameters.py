"""Prints the parameter counts of the named sizes, or of one configuration, without building a model.

Example:
  python tpu_scripts/count_parameters.py
  python tpu_scripts/count_parameters.py --size=base --sharing=attention --embedding_size=768
  python tpu_scripts/count_parameters.py --albert_config_file=albert_config.json
"""

from collections.abc import Mapping

from albert_tf.cli import commands
from albert_tf.configs import HEADS, SIZES, AlbertConfig, ModelChoice, count_parameters
from albert_tf.progress import markdown_table

commands.define_flags(ModelChoice)


def table(configs: Mapping[str, AlbertConfig]) -> str:
  """Each configuration by its name, with the numbers that table 1 of the paper has."""
  rows = []
  for name, config in configs.items():
    shape = (config.num_hidden_layers, config.hidden_size, config.embedding_size, config.sharing)
    block = sum(
      one for part, (_, one) in count_parameters(config).items() if part.endswith("LayerNorm")
    )
    rows.append((name, *shape, block, config.param_count(), config.param_count(heads=HEADS)))
  header = (
    "size",
    "layers",
    "H",
    "E",
    "shared",
    "one block",
    "encoder + pooler",
    "with both heads",
  )
  return markdown_table(header, *rows)


def main() -> None:
  model = commands.from_flags(ModelChoice)
  name = model.size or model.albert_config_file
  configs = {name: AlbertConfig.from_name(name) for name in SIZES}
  print(table({name or "": model.config()} if name or model.changes else configs))


if __name__ == "__main__":
  commands.run(main)
