"""Shows the batch of one update of a pretraining run as text, the highest loss first: a spike gets its culprit.

Example:
  python tpu_scripts/replay_step.py --run=runs/first --step=1234
"""

import dataclasses

from albert_tf import commands, files
from albert_tf.settings import Settings, setting
from albert_tf.startup import load_tensorflow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """What is shown."""

  run: str = setting(help="The run directory of run_pretrain.py.")
  step: int = setting(help="Number of the update, from 1 on.")
  input_file: str = setting(
    "", help="The run's records, where they have moved: comma-separated glob patterns."
  )
  num_shown: int = setting(5, help="Examples shown.", minimum=1)
  max_chars: int = setting(800, help="Characters of a text that are shown.", minimum=1)


commands.define_flags(Command)


def main() -> None:
  command = commands.from_flags(Command)
  load_tensorflow()
  from albert_tf.training.replay import replay_step

  moved = files.expand_globs(command.input_file, what="--input_file") if command.input_file else ()
  replayed = replay_step(command.run.rstrip("/"), command.step, input_files=moved)
  print(f"update {replayed.step:,}: {len(replayed.examples):,} examples, computed without dropout")
  print(f"weights: {replayed.weights}")
  print("In the texts, {braces} hold what was masked: {as predicted}, {as it was ~ as predicted}.")
  for rank, example in enumerate(replayed.examples[: command.num_shown], 1):
    losses = f"masked LM {example.masked_lm_loss:.4g}, sentence {example.sentence_loss:.3g}"
    print(f"\n#{rank} · row {example.row} of the batch · loss {example.loss:.4g} ({losses})")
    print(f"  {example.text[: command.max_chars]}{' …' * (len(example.text) > command.max_chars)}")


if __name__ == "__main__":
  commands.run(main)
