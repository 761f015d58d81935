"""Fine-tunes ALBERT on SQuAD 1.1 or 2.0 with Keras' `model.fit`, and answers questions.

Example:
  python tpu_scripts/run_squad.py --flagfile=recipes/squad2.flags --train_file=train-v2.0.json \
    --predict_file=dev-v2.0.json --init_checkpoint=RUN --output_dir=squad2
  python tpu_scripts/run_squad.py --do_predict --predict_file=questions.json --init_checkpoint=squad2 \
    --output_dir=answers
"""

import dataclasses

import finetune_command

from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.read import read_splits
from albert_tf.finetuning.tasks.squad.settings import SPEC_SIZES, SquadFiles, SquadSettings


class Command(SquadFiles, SquadSettings):
  """The files, and the sizes in tokens."""


# Without defaults, so that later questions keep the sizes of training.
finetune_command.define_flags(
  Command, without=finetune_command.EARLY_EXIT, **dict.fromkeys(SPEC_SIZES)
)


def prepare(
  request: finetune_command.Request, start: "finetune_command.Start"
) -> "finetune_command.FineTuningTask":
  """Reads the questions, and makes the task of them."""
  from albert_tf.finetuning.tasks.squad.task import SquadTask

  # What the other version or the other questions need.
  command: Command = request.command
  if command.squad_version == "1.1":
    of_version_2 = ["null_score_diff_threshold", "start_n_top", "end_n_top"]
    request.refuse_flags("--version=1.1", of_version_2)
  if command.selection_split == "predict":
    request.refuse_flags("--selection_split=predict", ["held_out_fraction"])

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

  # The threshold of 2.0, in this order: the flag's, that of questions which choose it, the
  # fine-tuned run's. An ensemble has the mean of its members'.
  threshold = command.null_score_diff_threshold
  nothing_chooses = not command.train_file and command.selection_split == "train"
  if threshold is None and nothing_chooses and not request.ensemble_of:
    threshold = 0.0
    if request.trained is not None:
      threshold = request.trained.null_score_diff_threshold
  return SquadTask(
    read_splits(command),
    version=command.squad_version,
    settings=command,
    tokenizer=start.tokenizer,
    threshold=threshold,
  )


def main() -> None:
  # Questions are there to be answered.
  request = finetune_command.read_request(Command, implies_predict="predict_file")
  finetune_command.run(request, prepare)


if __name__ == "__main__":
  commands.run(main)
