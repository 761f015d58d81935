"""Options that choose a model: a named size, a configuration file, or both; and its depth.

Commands that build a model from their flags use it. No TensorFlow.
"""

import dataclasses
from typing import Any

from albert_tf.configs.albert_config import SIZES, AlbertConfig
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting


class ModelChoice(Settings):
  """The model of a command.

  `commands.define_flags(ModelChoice)`, then `commands.from_flags(ModelChoice).config()`.

  Example:
    >>> ModelChoice(size="base", num_hidden_layers=24).config().num_hidden_layers
    24
  """

  size: str | None = setting(
    None, "A named size; its vocabulary size becomes that of the records.", choices=tuple(SIZES)
  )
  albert_config_file: str | None = setting(
    None,
    "JSON file of the model, or of the fields that differ from --size. Without vocab_size it takes "
    "that of the records.",
  )
  num_hidden_layers: int | None = setting(
    None, "Number of layers. Default: as in --size or the file.", minimum=1
  )

  def config(self, records_vocab_size: int | None = None) -> AlbertConfig:
    """The model's configuration, with the vocabulary size of the records if it is given."""
    # What the file leaves out.
    fields: dict[str, Any] = {}
    if self.size is not None:
      fields |= SIZES[self.size]
    # Records know the size of their vocabulary; a command without records leaves it out.
    if records_vocab_size is not None:
      fields["vocab_size"] = records_vocab_size

    if self.albert_config_file is not None:
      config = AlbertConfig.from_json_file(self.albert_config_file, **fields)
    elif self.size is not None:
      config = AlbertConfig(**fields)
    else:
      raise UserError(
        "The model is given by --size, by --albert_config_file, or by both. Received: neither."
      )
    if self.num_hidden_layers is not None:
      config = dataclasses.replace(config, num_hidden_layers=self.num_hidden_layers)
    return config
