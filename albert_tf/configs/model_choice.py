"""The options that give a model: a named size or a configuration file, and what is changed in it. No TensorFlow."""

import dataclasses
from typing import Any, Literal

from albert_tf.configs.albert_config import AlbertConfig
from albert_tf.configs.sizes import named_sizes
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

_OWN = " Default: the size's or file's own."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelChoice(Settings):
  """The model of a command: `commands.define_flags(ModelChoice)`, then `commands.from_flags(ModelChoice).config()`.

  Example:
    >>> ModelChoice(size="base", num_hidden_layers=24).config().num_hidden_layers
    24
  """

  size: str | None = setting(
    None, help="A named size; its vocabulary size becomes the records'.", choices=named_sizes()
  )
  albert_config_file: str | None = setting(
    None, help="JSON of the model, instead of --size; without a vocab_size it takes the records'."
  )
  sharing: Literal["all", "attention", "ffn", "none"] | None = setting(
    None, help="What the layers share (ALBERT, table 4)." + _OWN
  )
  embedding_size: int | None = setting(None, help="E, width of the embedding tables." + _OWN, minimum=1)
  hidden_size: int | None = setting(
    None,
    help="H. F becomes 4 H and the heads H / 64 where their own flags do not say else (ALBERT, section 4.1)."
    + _OWN,
    minimum=1,
  )
  num_hidden_layers: int | None = setting(None, help="How often a block is applied." + _OWN, minimum=1)
  num_attention_heads: int | None = setting(None, help="N; H / N must be whole." + _OWN, minimum=1)
  intermediate_size: int | None = setting(None, help="F, width of the feed-forward layer." + _OWN, minimum=1)
  num_hidden_groups: int | None = setting(
    None, help="Distinct blocks that the layers are divided into, with --sharing=all." + _OWN, minimum=1
  )
  hidden_dropout_prob: float | None = setting(
    None, help="Dropout after embeddings, attention output and feed-forward." + _OWN
  )
  attention_probs_dropout_prob: float | None = setting(
    None, help="Dropout on the attention probabilities." + _OWN
  )

  @property
  def changes(self) -> dict[str, Any]:
    """What is changed in the size or file, by the names of `AlbertConfig`."""
    named = {"size", "albert_config_file"}
    given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return {name: value for name, value in given.items() if name not in named and value is not None}

  def config(self, records_vocab_size: int | None = None) -> AlbertConfig:
    """The model's configuration, with the vocabulary size of the records where that is given.

    Raises:
      UserError: neither or both of `size` and `albert_config_file`, or values that fit no model.
    """
    if (self.size is None) == (self.albert_config_file is None):
      raise UserError(
        "The model is given by exactly one of --size and --albert_config_file. Received: "
        f"--size={self.size}, --albert_config_file={self.albert_config_file}. Give one, for example --size=base."
      )
    if self.albert_config_file is not None:
      given = AlbertConfig.from_json_file(self.albert_config_file, vocab_size=records_vocab_size)
      return given.resized(**self.changes)
    config = AlbertConfig.from_name(self.size or "").resized(**self.changes)
    return config if records_vocab_size is None else config.replace(vocab_size=records_vocab_size)
