"""What fine-tuning starts from: configuration, tokenizer and weights of a checkpoint of any known format."""

import dataclasses

from albert_tf.configs import AlbertConfig
from albert_tf.interop import Checkpoint
from albert_tf.tokenization import AlbertTokenizer


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
  tokenizer: AlbertTokenizer
  checkpoint: Checkpoint | None
  source: str


def read_start(
  init_checkpoint: str,
  *,
  spm_model_file: str = "",
  albert_config_file: str = "",
  do_lower_case: bool | None = None,
  from_scratch: bool = False,
) -> Start:
  """Reads a run directory, an original checkpoint, a TF-Hub module or a Hugging Face folder.

  Args:
    init_checkpoint: the path; empty only with `from_scratch`.
    spm_model_file: instead of the tokenizer beside the weights.
    albert_config_file: instead of the configuration beside the weights.
    do_lower_case: instead of the tokenizer's own setting.
    from_scratch: random weights, asked for explicitly.

  Raises:
    UserError: nothing is there, or parts are missing.
  """
  raise NotImplementedError
