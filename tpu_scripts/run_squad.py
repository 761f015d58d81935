"""Fine-tunes ALBERT on SQuAD 1.1 or 2.0 with Keras' `model.fit`, and answers questions.

Example:
  python tpu_scripts/run_squad.py --flagfile=recipes/squad2.flags --train_file=train-v2.0.json \
    --predict_file=dev-v2.0.json --init_checkpoint=RUN --output_dir=squad2
  python tpu_scripts/run_squad.py --do_predict --predict_file=questions.json --init_checkpoint=squad2 \
    --output_dir=answers
"""

import dataclasses
from typing import TYPE_CHECKING

from absl import flags
import finetuning

from albert_tf import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.settings import SPEC_SIZES, SquadFiles, SquadSettings

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.configs.task import TaskSpec
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(finetuning)  # --help shows them too.
commands.define_flags(SquadFiles)
commands.define_flags(SquadSettings, **dict.fromkeys(SPEC_SIZES))


def _trained_spec() -> "TaskSpec | None":
  """Of the fine-tuned run whose weights are used without training."""
  spec = finetuning.trained_spec()
  if spec and (spec.kind != "question_answering" or FLAGS.version not in (None, spec.squad_version)):
    raise UserError(
      "The fine-tuned run must be of the version asked for. Received: "
      f"--version={FLAGS.version or ''} and {FLAGS.init_checkpoint or FLAGS.output_dir}, a run of {spec.kind} "
      f"{spec.squad_version}. Name another --init_checkpoint."
    )
  return spec


def _prepare(start: "Start", settings: "FineTuneSettings") -> finetuning.Prepared:
  from albert_tf.finetuning.tasks.squad.task import build_task

  trained = _trained_spec()
  version = FLAGS.version or (trained.squad_version if trained else None)
  if version is None:
    raise UserError("SQuAD has two versions. Received: no --version. Use --version=1.1 or --version=2.0.")
  if settings.do_train and not FLAGS.train_file:
    raise UserError("--do_train needs questions with answers. Received: no --train_file.")
  if not settings.do_train and not FLAGS.predict_file:
    raise UserError("Without --do_train there must be questions to answer. Received: no --predict_file.")
  train_file = FLAGS.train_file if settings.do_train else ""
  source = commands.from_flags(SquadFiles, version=version, train_file=train_file)
  sizes = {
    name: getattr(trained or SquadSettings(), name) for name in SPEC_SIZES if FLAGS[name].value is None
  }
  threshold = trained.null_score_diff_threshold if trained else 0.0
  task = build_task(
    source,
    settings=commands.from_flags(SquadSettings, **sizes),
    tokenizer=start.tokenizer,
    default_threshold=None if FLAGS.ensemble_of else threshold,
  )
  # What is evaluated and what is predicted follows from the files.
  settings = dataclasses.replace(settings, do_eval="eval" in task.splits, do_predict="test" in task.splits)
  return finetuning.Prepared(task, settings)


def main() -> None:
  finetuning.run(_prepare)


if __name__ == "__main__":
  commands.run(main)
