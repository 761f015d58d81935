"""Prints the parameter counts of the named sizes, or of one configuration, without building a model.

Example:
  python tpu_scripts/count_parameters.py
  python tpu_scripts/count_parameters.py --size=base
  python tpu_scripts/count_parameters.py --albert_config_file=albert_config.json
"""

from collections.abc import Mapping

from albert_tf.cli import commands
from albert_tf.configs import HEADS, SIZES, AlbertConfig, ModelChoice, count_parameters
from albert_tf.progress import markdown_table
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The model."""

  size: str | None = setting(None, "A named size. Default: all.", choices=tuple(SIZES))
  albert_config_file: str | None = setting(
    None, "JSON file of a model, or of what differs from --size."
  )


commands.define_flags(Command)


def table(configs: Mapping[str, AlbertConfig]) -> str:
  """Each configuration by its name, with the numbers that table 1 of the paper has."""
  lines: list[tuple[object, ...]] = [
    ("size", "layers", "H", "E", "shared", "one block", "encoder + pooler", "with both heads")
  ]
  for name, config in configs.items():
    block_size = 0
    for module, (_, num_parameters) in count_parameters(config).items():
      # A block is attention and feed-forward, each with its LayerNorm; these have no other.
      if module.endswith("LayerNorm"):
        block_size += num_parameters
    lines.append(
      (
        name,
        config.num_hidden_layers,
        config.hidden_size,
        config.embedding_size,
        config.sharing,
        block_size,
        config.param_count(),
        config.param_count(heads=HEADS),
      )
    )
  return markdown_table(*lines)


def main() -> None:
  command = commands.from_flags(Command)
  name = command.albert_config_file or command.size
  # Without a model it is the paper's table of all sizes.
  configs = {size: AlbertConfig.from_name(size) for size in SIZES}
  if name:
    model = ModelChoice(size=command.size, albert_config_file=command.albert_config_file)
    configs = {name: model.config()}
  print(table(configs))


if __name__ == "__main__":
  commands.run(main)
