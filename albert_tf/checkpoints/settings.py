"""Settings of `convert.convert`. No TensorFlow."""

from typing import Literal

from albert_tf.settings import Settings, setting


class ConvertOptions(Settings):
  """Settings of a conversion."""

  output_format: Literal["albert_tf", "tf1", "huggingface"] = setting(
    "albert_tf", "Format of the output, whose weights are float32."
  )
  config_file: str = setting(
    "",
    "JSON file of the model. Default: the one in the weights' folder.",
    flag="albert_config_file",
  )
  spm_model_file: str = setting(
    "", "Vocabulary (.model, .txt). Default: the one in the weights' folder."
  )
  allow_unmatched: str = setting(
    "",
    "Regular expression of variables that may be missing in the input, or remain unused there.",
  )
  expand_sharing: bool = setting(False, "Give every layer its own copy of shared parameters.")
