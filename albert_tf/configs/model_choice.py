"""Options that choose a model: a named size or a configuration file, and changed fields.

Commands that build a model from their flags use it. No TensorFlow.
"""

from typing import Any, Literal

from albert_tf.configs.albert_config import SIZES, AlbertConfig
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting


def _changed(name: str) -> Any:
  """A field of `AlbertConfig` that a flag may change: with its bounds, but None by default."""
  metadata = dict(AlbertConfig.__dataclass_fields__[name].metadata)
  metadata["help"] += " Default: as in --size or the file."
  return setting(None, **metadata)


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
    "JSON file of the model, in place of --size. Without vocab_size it takes that of the records.",
  )
  sharing: Literal["all", "attention", "ffn", "none"] | None = _changed("sharing")
  embedding_size: int | None = _changed("embedding_size")
  hidden_size: int | None = _changed("hidden_size")
  num_hidden_layers: int | None = _changed("num_hidden_layers")
  num_attention_heads: int | None = _changed("num_attention_heads")
  intermediate_size: int | None = _changed("intermediate_size")
  num_hidden_groups: int | None = _changed("num_hidden_groups")
  hidden_dropout_prob: float | None = _changed("hidden_dropout_prob")
  attention_probs_dropout_prob: float | None = _changed("attention_probs_dropout_prob")

  @property
  def changes(self) -> dict[str, Any]:
    """The fields of `AlbertConfig` that the flags change."""
    fields = self.to_dict()
    # These two choose the model; the other fields change it.
    del fields["size"], fields["albert_config_file"]
    return {name: value for name, value in fields.items() if value is not None}

  def config(self, records_vocab_size: int | None = None) -> AlbertConfig:
    """The model's configuration, with the vocabulary size of the records if it is given."""
    if (self.size is None) == (self.albert_config_file is None):
      raise UserError(
        "The model is given by exactly one of --size and --albert_config_file. Received: "
        f"{self.size} and {self.albert_config_file}."
      )
    # Records know the size of their vocabulary; a command without records leaves it out.
    vocabulary: dict[str, Any] = {}
    if records_vocab_size is not None:
      vocabulary["vocab_size"] = records_vocab_size
    if self.size is not None:
      config = AlbertConfig.from_name(self.size, **vocabulary)
    else:
      # The file's own vocabulary size counts, where it has one.
      config = AlbertConfig.from_json_file(str(self.albert_config_file), **vocabulary)
    return config.resized(**self.changes)
