"""Fine-tunes ALBERT on SQuAD 1.1 or 2.0 with Keras' `model.fit`, and answers questions.

Example:
  python tpu_scripts/run_squad.py --flagfile=recipes/squad2.flags --train_file=train-v2.0.json \
    --predict_file=dev-v2.0.json --init_checkpoint=RUN --output_dir=squad2
  python tpu_scripts/run_squad.py --do_predict --predict_file=questions.json --init_checkpoint=squad2 \
    --output_dir=answers
"""

from typing import Any

from absl import flags
import finetuning

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.settings import SPEC_SIZES, SquadFiles, SquadSettings

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(finetuning)  # --help shows them too.
commands.define_flags(SquadFiles)
commands.define_flags(SquadSettings, **dict.fromkeys(SPEC_SIZES))


def _prepare(start: Any) -> Any:
  from albert_tf.finetuning.tasks.squad.task import build_task

  trained = finetuning.trained_spec()
  version = FLAGS.version or (trained.squad_version if trained else None)
  if not version:
    raise UserError(
      "SQuAD has two versions. Received: no --version. Use --version=1.1 or --version=2.0."
    )
  if version == "1.1":
    of_version_2 = ["null_score_diff_threshold", "start_n_top", "end_n_top"]
    commands.refuse_flags("--version=1.1", of_version_2)
  if FLAGS.selection_split == "predict":
    commands.refuse_flags("--selection_split=predict", ["held_out_fraction"])
  needed = "train_file" if FLAGS.do_train else "predict_file"
  if not FLAGS[needed].value:
    raise UserError(
      "--do_train needs --train_file, and without it there must be questions to answer, --predict_file. "
      f"Received: no --{needed}."
    )
  train_file = FLAGS.train_file if FLAGS.do_train else ""
  sizes = {
    name: getattr(trained or SquadSettings(), name)
    for name in SPEC_SIZES
    if FLAGS[name].value is None
  }
  threshold = trained.null_score_diff_threshold if trained else 0.0
  return build_task(
    commands.from_flags(SquadFiles, version=version, train_file=train_file),
    settings=commands.from_flags(SquadSettings, **sizes),
    tokenizer=start.tokenizer,
    default_threshold=None if FLAGS.ensemble_of else threshold,
  )


def main() -> None:
  FLAGS["do_predict"].value = FLAGS.do_predict or bool(FLAGS.predict_file)
  finetuning.run(_prepare)


if __name__ == "__main__":
  commands.run(main)
