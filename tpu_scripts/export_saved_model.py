"""Exports a trained model as a SavedModel for TensorFlow Serving: <output_dir>/<version>/.

Example:
  python tpu_scripts/export_saved_model.py --model fill_mask --init_checkpoint RUN --output_dir E --version 1
"""

from collections.abc import Sequence

from absl import app, flags, logging

from albert_tf import files
from albert_tf.configs.task import EXPORT_KINDS
from albert_tf.errors import exit_on_user_error
from albert_tf.startup import load_tensorflow

_MODEL = flags.DEFINE_enum(
  "model",
  None,
  EXPORT_KINDS,
  "encoder: vectors of a text; fill_mask: the best words for each [MASK]; the others: what a run_glue.py, "
  "run_squad.py, run_race.py or run_tagging.py run directory was fine-tuned for.",
  required=True,
)
_INIT_CHECKPOINT = flags.DEFINE_string(
  "init_checkpoint",
  None,
  "Run directory (its best checkpoint is taken, else its newest), or a checkpoint prefix.",
  required=True,
)
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file",
  "",
  "SentencePiece model, or WordPiece vocabulary (.txt), where none lies beside the checkpoint or another is meant.",
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "Folder of versions that a server watches.", required=True
)
_VERSION = flags.DEFINE_integer(
  "version", 1, "The version's number; servers take the highest.", lower_bound=1
)
_TOP_K = flags.DEFINE_integer("top_k", 10, "fill_mask: how many answers a mask gets.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length",
  None,
  "Texts are cut to this many tokens. Default: the length of fine-tuning, else the longest the model knows.",
  lower_bound=8,
)
_PAD_TO_MAX_LENGTH = flags.DEFINE_boolean(
  "pad_to_max_length", False, "Every row has --max_seq_length tokens; else a batch has its longest row's."
)
_N_BEST = flags.DEFINE_integer(
  "n_best", 20, "question_answering: how many answers a question gets.", lower_bound=1
)
_MAX_WINDOWS = flags.DEFINE_integer(
  "max_windows",
  32,
  "question_answering: how many windows of a context are read; what lies behind is not.",
  lower_bound=1,
)
_MODEL_NAME = flags.DEFINE_string(
  "model_name", None, "The name under which servers offer the model. Default: --model."
)
_USE_EMA = flags.DEFINE_boolean("use_ema", False, "The averages of a run with --ema_decay, not its weights.")


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
  logging.set_verbosity(logging.WARNING)
  load_tensorflow()
  from albert_tf.serving import export_saved_model
  from albert_tf.serving.layout import docker_command
  from albert_tf.serving.saved_model import read_signatures

  path = export_saved_model(
    model=_MODEL.value,
    init_checkpoint=_INIT_CHECKPOINT.value,
    output_dir=_OUTPUT_DIR.value,
    version=_VERSION.value,
    spm_model_file=_SPM_MODEL_FILE.value,
    top_k=_TOP_K.value,
    n_best=_N_BEST.value,
    max_windows=_MAX_WINDOWS.value,
    model_name=_MODEL_NAME.value,
    max_seq_length=_MAX_SEQ_LENGTH.value,
    pad_to_max_length=_PAD_TO_MAX_LENGTH.value,
    use_ema=_USE_EMA.value,
  )
  print(f"Exported {_MODEL.value} to {path}")
  name, signatures = _MODEL_NAME.value or _MODEL.value, read_signatures(path)
  remote = files.is_remote(_OUTPUT_DIR.value)  # Docker mounts folders alone.
  command = docker_command(None if remote else _OUTPUT_DIR.value, model_name=name, signatures=signatures)
  if remote:
    print(f"Copy {_OUTPUT_DIR.value} to a disk, and serve it there with\n  {command}")
  else:
    here = f"albert-serve-locally --saved_model {_OUTPUT_DIR.value}"
    print(f"Serve it with\n  {command}\nor try it on this machine, with a page:\n  {here}")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
