"""Exports a trained model as a SavedModel for TensorFlow Serving: <output_dir>/<version>/.

Example:
  python tpu_scripts/export_saved_model.py --model fill_mask --init_checkpoint RUN --output_dir E --version 1
"""

from collections.abc import Sequence

from absl import app, flags, logging

from albert_tf.errors import exit_on_user_error
from albert_tf.startup import load_tensorflow

_MODEL = flags.DEFINE_enum(
  "model",
  None,
  ["encoder", "fill_mask"],
  "encoder: vectors of a text; fill_mask: the best words for each [MASK].",
  required=True,
)
_INIT_CHECKPOINT = flags.DEFINE_string(
  "init_checkpoint",
  None,
  "Run directory (its best checkpoint is taken, else its newest), or a checkpoint prefix.",
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "Folder of versions that a server watches.", required=True
)
_VERSION = flags.DEFINE_integer(
  "version", 1, "The version's number; servers take the highest.", lower_bound=1
)
_TOP_K = flags.DEFINE_integer("top_k", 10, "fill_mask: how many answers a mask gets.", lower_bound=1)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
  logging.set_verbosity(logging.WARNING)
  load_tensorflow()
  from albert_tf.serving import export_saved_model

  path = export_saved_model(
    model=_MODEL.value,
    init_checkpoint=_INIT_CHECKPOINT.value,
    output_dir=_OUTPUT_DIR.value,
    version=_VERSION.value,
    top_k=_TOP_K.value,
  )
  print(f"Exported {_MODEL.value} to {path}")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
