"""The start of fine-tuning: configuration, tokenizer and weights of a checkpoint of any format.

Commands read one and give it to `run.fine_tune`.
"""

import dataclasses
import re
from typing import Any

from absl import logging

from albert_tf.checkpoints.checkpoint import (
  FINETUNED_HEADS,
  Checkpoint,
  load_weights,
  read_checkpoint,
)
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
  """Configuration, tokenizer and weights at the start of fine-tuning.

  Attributes:
    config: the encoder's configuration.
    tokenizer: the tokenizer that the weights were trained with.
    checkpoint: the weights; None: random weights (`--from_scratch`).
    source: the name of the weights in messages.
  """

  config: AlbertConfig
  tokenizer: Tokenizer
  checkpoint: Checkpoint | None
  source: str

  @property
  def has_head(self) -> bool:
    """Whether the weights have the head of a task, not only those of pretraining."""
    variables = self.checkpoint.variables if self.checkpoint else {}
    return any(re.search(FINETUNED_HEADS, name) for name in variables)


def read_start(
  init_checkpoint: str,
  *,
  spm_model_file: str = "",
  vocab_file: str = "",
  albert_config_file: str = "",
  do_lower_case: bool | None = None,
  from_scratch: bool = False,
) -> Start:
  """Reads a run directory, an original checkpoint, a TF-Hub module or a Hugging Face folder.

  Args:
    init_checkpoint: the path; empty only with `from_scratch`.
    spm_model_file: a vocabulary; empty: the one in the checkpoint's folder.
    vocab_file: a WordPiece vocabulary, as for the Chinese models; only tasks without character
      offsets can use one.
    albert_config_file: a configuration; empty: the one in the checkpoint's folder.
    do_lower_case: replaces the tokenizer's setting, if not None.
    from_scratch: use random weights.

  Raises:
    UserError: the path does not exist, or parts are missing.
  """
  path = vocab_file or spm_model_file
  is_complete = bool(path) and bool(albert_config_file)
  # Weights or --from_scratch, not both; random weights have no folder with the other files.
  if bool(init_checkpoint) == from_scratch or (from_scratch and not is_complete):
    raise UserError(
      "Fine-tuning starts from pretrained weights, --init_checkpoint, or from random ones: "
      "--from_scratch with --albert_config_file and --spm_model_file. Received: "
      f"--init_checkpoint={init_checkpoint}, --albert_config_file={albert_config_file}, "
      f"--spm_model_file={path}."
    )
  if from_scratch:
    config = AlbertConfig.from_json_file(albert_config_file)
    checkpoint = Checkpoint(config=config, variables={})
  else:
    checkpoint = read_checkpoint(init_checkpoint, config_file=albert_config_file)
  return Start(
    config=checkpoint.config,
    # A vocabulary that is not named is the one in the checkpoint's folder.
    tokenizer=checkpoint.load_tokenizer(path, do_lower_case=do_lower_case),
    checkpoint=None if from_scratch else checkpoint,
    source=checkpoint.path or "random weights",
  )


def load_encoder_weights(model: Any, start: Start, *, seed: int) -> None:
  """Loads the encoder's weights into a new model; its head has random weights by `seed`.

  Heads of pretraining or of another task in the checkpoint are not loaded.

  Raises:
    UserError: a variable of the encoder is missing, or its shape differs.
  """
  if start.checkpoint is None:
    logging.warning("seed %d starts from random weights", seed)
    return
  # Heads of pretraining or of another task are left out, even where names and shapes would fit.
  variables = start.checkpoint.variables
  encoder = {name: value for name, value in variables.items() if name.startswith("bert/")}
  # The new head keeps its random weights.
  report = load_weights(model, encoder, allow_missing="^(?!bert/)", source=start.source)
  logging.info(
    "seed %d: %d variables restored from %s; new: %s; left out: %s",
    seed,
    len(report.matched),
    start.source,
    ", ".join(report.missing) or "none",
    ", ".join(sorted(variables.keys() - encoder)) or "none",
  )
