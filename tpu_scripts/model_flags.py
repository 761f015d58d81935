"""The flags that change a named size or a configuration file: those of training, planning and counting are the same."""

from typing import Any

from absl import flags

from albert_tf.configs import SHARING_KINDS, AlbertConfig
from albert_tf.errors import UserError

# Flag → what it says; each is a field of `AlbertConfig`. One that is not given leaves the size or file as it is.
_INTEGERS = {
  "embedding_size": "E, width of the embedding tables.",
  "hidden_size": "H. F becomes 4 H and the heads H / 64 where their own flags do not say else (ALBERT, section 4.1).",
  "num_hidden_layers": "How often a block is applied.",
  "num_attention_heads": "N; H / N must be whole.",
  "intermediate_size": "F, width of the feed-forward layer.",
  "num_hidden_groups": "Distinct blocks that the layers are divided into, with --sharing=all.",
}
_RATES = {
  "hidden_dropout_prob": "Dropout after embeddings, attention output and feed-forward.",
  "attention_probs_dropout_prob": "Dropout on the attention probabilities.",
}
_NAMES = ("sharing", *_INTEGERS, *_RATES)

flags.DEFINE_enum("sharing", None, list(SHARING_KINDS), "What the layers share (ALBERT, table 4).")
for _name, _help in _INTEGERS.items():
  flags.DEFINE_integer(_name, None, f"{_help} Default: the size's or file's own.", lower_bound=1)
for _name, _help in _RATES.items():
  flags.DEFINE_float(_name, None, f"{_help} Default: the size's or file's own.")


def check_given_once(size: str | None, config_file: str | None) -> None:
  """Refuses a command line with both --size and --albert_config_file, or neither."""
  if (size is None) == (config_file is None):
    raise UserError(
      "The model is given by exactly one of --size and --albert_config_file. Received: "
      f"--size={size}, --albert_config_file={config_file}. Give one, for example --size=base."
    )


def model_changes() -> dict[str, Any]:
  """What the flags change, by the names of `AlbertConfig`."""
  return {name: flags.FLAGS[name].value for name in _NAMES if flags.FLAGS[name].value is not None}


def changed(config: AlbertConfig) -> AlbertConfig:
  """`config` with what the flags change; what follows from another width is said in `AlbertConfig.resized`."""
  return config.resized(**model_changes())


def model_config(records_vocab_size: int | None) -> AlbertConfig:
  """The model of --size or --albert_config_file, with what the flags above change and the records' vocabulary size."""
  size, path = flags.FLAGS.size, flags.FLAGS.albert_config_file
  check_given_once(size, path)
  if path is not None:
    return changed(AlbertConfig.from_json_file(path, vocab_size=records_vocab_size))
  config = changed(AlbertConfig.from_name(size))
  return config if records_vocab_size is None else config.replace(vocab_size=records_vocab_size)
