"""Finds configuration, tokenizer and checkpoint in a run directory, or beside a checkpoint."""

import dataclasses
import os

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.training.checkpoints import find_checkpoint

CONFIG_NAME = "albert_config.json"


@dataclasses.dataclass(frozen=True)
class PretrainedFiles:
  """What a trained model consists of.

  Args:
    directory: where configuration and tokenizer are.
    config: the model's configuration.
    checkpoint: prefix of the checkpoint's files.
  """

  directory: str
  config: AlbertConfig
  checkpoint: str

  def load_tokenizer(self) -> AlbertTokenizer:
    """The tokenizer, checked against the model's vocabulary.

    Raises:
      UserError: there is none, or its size is not the model's.
    """
    tokenizer = AlbertTokenizer.from_pretrained(self.directory)
    if tokenizer.vocab_size != self.config.vocab_size:
      raise UserError(
        f"Model and vocabulary must have the same size. Received: vocab_size={self.config.vocab_size} in "
        f"{CONFIG_NAME}, {tokenizer.vocab_size} pieces in the SentencePiece model of {self.directory}. "
        "Put the model's own SentencePiece model there."
      )
    return tokenizer


def find_pretrained(path: str) -> PretrainedFiles:
  """Finds what `--init_checkpoint` names.

  Args:
    path: a run directory (its best checkpoint by held-out accuracy, else its
      newest), a folder of the original release, or a checkpoint prefix; a
      checkpoint's file name, `.index` included, means its prefix.

  Raises:
    UserError: there is no checkpoint, or no configuration beside it.
  """
  checkpoint = find_checkpoint(path)
  folder = os.path.dirname(checkpoint)
  # A run's checkpoints are in checkpoints/ or checkpoints/best/, the original's beside the configuration.
  candidates = [files.normpath(os.path.join(folder, *[".."] * depth)) for depth in range(3)]
  directory = next((c for c in candidates if files.exists(os.path.join(c, CONFIG_NAME))), None)
  if directory is None:
    raise UserError(
      f"{CONFIG_NAME} must lie beside the checkpoint. Received: {path}; none in {', '.join(candidates)}. "
      "Name the run directory, or put the model's configuration there."
    )
  config = AlbertConfig.from_json_file(os.path.join(directory, CONFIG_NAME))
  return PretrainedFiles(directory, config, checkpoint)
