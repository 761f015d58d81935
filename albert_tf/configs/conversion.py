"""How a checkpoint is converted: the settings of `checkpoints.convert`. No TensorFlow."""

from typing import Literal

from albert_tf.settings import Settings, setting


class ConvertOptions(Settings):
  """How to convert."""

  output_format: Literal["albert_tf", "tf1", "huggingface"] = setting("albert_tf", "What to write.")
  config_file: str = setting(
    "", "Configuration, if it is not next to the weights.", flag="albert_config_file"
  )
  spm_model_file: str = setting(
    "", "SentencePiece model, or WordPiece vocabulary (.txt), if it is not next to the weights."
  )
  allow_missing: str = setting("", "Regular expression of variables that may be missing.")
  allow_unused: str = setting("", "Regular expression of variables that may be left over.")
  expand_sharing: bool = setting(False, "Give every layer its own copy of shared parameters.")
