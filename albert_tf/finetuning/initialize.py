"""What fine-tuning starts from: configuration, tokenizer and weights of a checkpoint of any known format."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from absl import logging
import numpy as np

from albert_tf.checkpoints import Checkpoint, load_tokenizer, load_weights, read_checkpoint
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.tokenization import Tokenizer

_ENCODER = "bert/"
_HEAD = rf"^(?!{_ENCODER})"  # Every variable that is not of the encoder.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
  """Where fine-tuning begins.

  Attributes:
    config: the encoder's configuration.
    tokenizer: the one the weights were trained with.
    checkpoint: the weights; None: random ones (`--from_scratch`).
    source: how messages name it.
  """

  config: AlbertConfig
  tokenizer: Tokenizer
  checkpoint: Checkpoint | None
  source: str


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
    spm_model_file: instead of the tokenizer beside the weights.
    vocab_file: a WordPiece vocabulary instead, as the Chinese models have; only tasks that need no
      character offsets work with one.
    albert_config_file: instead of the configuration beside the weights.
    do_lower_case: instead of the tokenizer's own setting.
    from_scratch: random weights, asked for explicitly.

  Raises:
    UserError: nothing is there, or parts are missing.
  """
  if from_scratch:
    path = vocab_file or spm_model_file
    if init_checkpoint or not path or not albert_config_file:
      raise UserError(
        "--from_scratch takes --albert_config_file and --spm_model_file, and no --init_checkpoint. Received: "
        f"--init_checkpoint={init_checkpoint}, --albert_config_file={albert_config_file}, --spm_model_file={path}."
      )
    config = AlbertConfig.from_json_file(albert_config_file)
    tokenizer = load_tokenizer(path, config, do_lower_case=do_lower_case)
    return Start(config=config, tokenizer=tokenizer, checkpoint=None, source="random weights")
  if not init_checkpoint:
    raise UserError(
      "Fine-tuning starts from pretrained weights. Received: an empty --init_checkpoint. Name a run directory, "
      "a checkpoint or a Hugging Face folder; --from_scratch starts from random weights."
    )
  checkpoint = read_checkpoint(init_checkpoint, config_file=albert_config_file)
  tokenizer = checkpoint.load_tokenizer(vocab_file or spm_model_file, do_lower_case=do_lower_case)
  return Start(config=checkpoint.config, tokenizer=tokenizer, checkpoint=checkpoint, source=checkpoint.path)


def load_encoder_weights(model: Any, start: Start, *, seed: int) -> None:
  """Gives a new model the encoder's weights and says so; its head keeps its random ones of `seed`.

  Heads in the checkpoint, of pretraining or of another task, are left out.

  Raises:
    UserError: a variable of the encoder is missing, or its shape differs.
  """
  if start.checkpoint is None:
    logging.warning("seed %d starts from random weights", seed)
    return
  every = start.checkpoint.variables
  encoder = {name: value for name, value in every.items() if name.startswith(_ENCODER)}
  if not encoder:
    raise UserError(
      f"The weights must be those of an ALBERT encoder ({_ENCODER}…). Received: {start.source}, which holds "
      f"{', '.join(sorted(every)[:4])}. Name another checkpoint."
    )
  report = load_weights(model, dataclasses.replace(start.checkpoint, variables=encoder), allow_missing=_HEAD)
  dropped = [
    *(name for name, _ in start.checkpoint.dropped),
    *(name for name in every if name not in encoder),
  ]
  logging.info(
    "seed %d: %d variables restored from %s; new: %s; left out: %s",
    seed,
    len(report.matched),
    start.source,
    ", ".join(report.missing) or "none",
    ", ".join(name for name in dropped if not name.startswith("albert_tf/")) or "none",
  )


def load_all_weights(model: Any, variables: Mapping[str, np.ndarray], *, source: str) -> None:
  """Gives a model the weights of a fine-tuned checkpoint, head included.

  Raises:
    UserError: a variable is missing or has another shape, as where the checkpoint is of another task.
  """
  own = named_variables(model)
  unfit = [
    name for name, v in own.items() if name not in variables or variables[name].shape != tuple(v.shape)
  ]
  if unfit:
    raise UserError(
      "Without --do_train the weights must be of a model fine-tuned for this task. Received: "
      f"{source}, where {', '.join(unfit[:4])} is missing or has another shape. Train first, or name "
      "the --output_dir of such a run as --init_checkpoint."
    )
  for name, variable in own.items():
    variable.assign(variables[name])
