"""Converts a checkpoint: the original release, TensorFlow Hub, Hugging Face and this project, in and out.

  python tpu_scripts/convert_checkpoint.py --input albert_base_v2/ --output my_albert/

Weights are copied bit for bit, heads and optimizer state included. Every variable is listed; one that does
not fit is an error unless a flag names it.
"""

from collections.abc import Sequence

from absl import app, flags

from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.startup import load_tensorflow

_BUNDLES_AND_HUGGINGFACE = ["albert_tf", "tf1", "huggingface"]
_WEIGHT_FILES = ["model.safetensors", "pytorch_model.bin"]

_INPUT = flags.DEFINE_string(
  "input",
  None,
  "Run or release directory, SavedModel, Hugging Face directory, weights file or checkpoint prefix.",
)
_INPUT_FORMAT = flags.DEFINE_enum(
  "input_format",
  "auto",
  ["auto", "tfhub", *_BUNDLES_AND_HUGGINGFACE],
  "What the input is; auto looks at its files.",
)
_OUTPUT = flags.DEFINE_string("output", None, "Directory to write; must not exist or be empty.")
_OUTPUT_FORMAT = flags.DEFINE_enum("output_format", "albert_tf", _BUNDLES_AND_HUGGINGFACE, "What to write.")
_CONFIG = flags.DEFINE_string(
  "albert_config_file", "", "Configuration, if it does not lie beside the weights."
)
_SPM = flags.DEFINE_string(
  "spm_model_file",
  "",
  "SentencePiece model, or WordPiece vocabulary (.txt), if it does not lie beside the weights.",
)
_PREFIX = flags.DEFINE_string(
  "variable_prefix",
  "",
  "Which model to take from a checkpoint of several TF-Hub modules, for example module_1/.",
)
_ALLOW_MISSING = flags.DEFINE_string(
  "allow_missing", "", "Regular expression of variables that may be missing."
)
_ALLOW_UNUSED = flags.DEFINE_string(
  "allow_unused", "", "Regular expression of variables that may be left over."
)
_SLOTS = flags.DEFINE_enum(
  "optimizer_slots", "keep", ["keep", "drop"], "Whether TensorFlow outputs keep adam_m and adam_v."
)
_EXPAND = flags.DEFINE_bool("expand_sharing", False, "Give every layer its own copy of shared parameters.")
_WEIGHTS_FILE = flags.DEFINE_enum(
  "huggingface_weights",
  _WEIGHT_FILES[0],
  _WEIGHT_FILES,
  "Weights file of a Hugging Face output.",
)
_ARCHITECTURE = flags.DEFINE_string(
  "huggingface_architecture", "", "Class that config.json names, for example AlbertForMultipleChoice."
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"Only flags are understood. Received: {' '.join(argv[1:])}. See --help.")
  if not _INPUT.value or not _OUTPUT.value:
    raise UserError("--input and --output are needed. Received: at least one of them empty. See --help.")
  load_tensorflow()
  from albert_tf.checkpoints import ConvertOptions, convert

  report = convert(
    _INPUT.value,
    _OUTPUT.value,
    ConvertOptions(
      input_format=_INPUT_FORMAT.value,
      output_format=_OUTPUT_FORMAT.value,
      config_file=_CONFIG.value,
      spm_model_file=_SPM.value,
      variable_prefix=_PREFIX.value,
      allow_missing=_ALLOW_MISSING.value,
      allow_unused=_ALLOW_UNUSED.value,
      keep_slots=_SLOTS.value == "keep",
      expand_sharing=_EXPAND.value,
      weights_file=_WEIGHTS_FILE.value,
      architecture=_ARCHITECTURE.value,
    ),
  )
  print("\n".join(report.lines()))
  print(report.summary())
  print("\n".join(report.notes))
  if report.recognised:
    print(f"recognised: {report.recognised}")
  print(f"written: {_OUTPUT.value} ({_OUTPUT_FORMAT.value})")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
