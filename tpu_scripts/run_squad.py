"""Fine-tunes ALBERT on SQuAD 1.1 or 2.0 with Keras' `model.fit`, and answers questions.

Example:
  python tpu_scripts/run_squad.py --flagfile=recipes/squad2.flags --train_file=train-v2.0.json \
    --predict_file=dev-v2.0.json --init_checkpoint=RUN --output_dir=squad2
  python tpu_scripts/run_squad.py --do_predict --predict_file=questions.json --init_checkpoint=squad2 \
    --output_dir=answers
"""

import dataclasses
from typing import TYPE_CHECKING

import finetune_command

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.read import read_splits
from albert_tf.finetuning.tasks.squad.settings import SPEC_SIZES, SquadFiles, SquadSettings

# They import TensorFlow, which would make --help slow.
if TYPE_CHECKING:
  from albert_tf.checkpoints.checkpoint import Checkpoint
  from albert_tf.finetuning.tasks.base import FineTuningTask


class Command(SquadFiles, SquadSettings):
  """The files, and the sizes in tokens."""


# Without defaults, so that later questions keep the sizes of training.
finetune_command.define_flags(Command, without=["depth_distillation"], **dict.fromkeys(SPEC_SIZES))


def make_task(
  command: Command, request: finetune_command.Request, start: "Checkpoint"
) -> "FineTuningTask":
  """Reads the questions, and makes the task of them."""
  from albert_tf.finetuning.tasks.squad.task import SquadTask

  # What the other version or the other questions need.
  if command.squad_version == "1.1":
    of_version_2 = ["start_n_top", "end_n_top"]
    request.refuse_flags("--version=1.1", of_version_2)
  if command.selection_split == "predict":
    request.refuse_flags("--selection_split=predict", ["eval_fraction"])

  needed = "train_file"
  if not request.settings.do_train:
    needed = "predict_file"
    # A recipe may name the training file of a run that only answers now.
    command = dataclasses.replace(command, train_file="")
  if not getattr(command, needed):
    raise UserError(
      "--do_train needs --train_file, and without it there must be questions to answer, "
      f"--predict_file. Received: no --{needed}."
    )

  # The threshold of 2.0 is that of questions which choose it, else the fine-tuned run's. An ensemble
  # has the mean of its members'.
  threshold = None
  nothing_chooses = not command.train_file and command.selection_split == "train"
  if nothing_chooses and not request.ensemble_of:
    threshold = request.trained.null_score_diff_threshold if request.trained else 0.0
  return SquadTask(
    read_splits(command),
    version=command.squad_version,
    settings=command,
    tokenizer=start.load_tokenizer(),
    threshold=threshold,
  )


def main() -> None:
  # Questions are there to be answered.
  request = finetune_command.read_request(implies_predict="predict_file")
  command = commands.from_flags(Command, request.trained)
  start = finetune_command.read_start(request)
  task = make_task(command, request, start)
  finetune_command.run(task, request, start)


if __name__ == "__main__":
  commands.run(main)
