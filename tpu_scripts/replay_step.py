"""Shows the batch of one update of a pretraining run as text, the highest loss first: a spike gets its culprit.

Example:
  python tpu_scripts/replay_step.py --run=runs/first --step=1234
"""

from collections.abc import Sequence
import json
import os
import sys

from absl import app, flags

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.startup import load_tensorflow

_RUN = flags.DEFINE_string("run", None, "The run directory of run_pretrain.py.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Number of the update, from 1 on.", required=True)
_INPUT_FILE = flags.DEFINE_string(
  "input_file", "", "The run's records, where they have moved: comma-separated glob patterns."
)
_NUM_SHOWN = flags.DEFINE_integer("num_shown", 5, "Examples shown with their text.", lower_bound=0)
_MAX_CHARS = flags.DEFINE_integer(
  "max_chars", 800, "Characters of a text that are shown; 0 for all.", lower_bound=0
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Examples computed at once.", lower_bound=1)
_OUTPUT_JSON = flags.DEFINE_string("output_json", "", "Also write all examples into this file.")
_WIDEST = 140


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"All arguments are flags. Received: {' '.join(argv[1:])}.")
  load_tensorflow()
  from albert_tf.tokenization import load_tokenizer
  from albert_tf.tokenization.loading import find_tokenizer
  from albert_tf.training.replay import text as replay_text
  from albert_tf.training.replay.compute import replay_step

  run = _RUN.value.rstrip("/")
  replayed = replay_step(
    run,
    _STEP.value,
    input_files=files.expand_globs(_INPUT_FILE.value, what="--input_file") if _INPUT_FILE.value else (),
    rows_at_once=_BATCH_SIZE.value,
    num_gradients=_NUM_SHOWN.value,
  )
  tokenizer = load_tokenizer(run) if find_tokenizer(run) else None
  width = min(os.get_terminal_size().columns, _WIDEST) if sys.stdout.isatty() else _WIDEST
  for line in replay_text.render(
    replayed, tokenizer, num_shown=_NUM_SHOWN.value, max_chars=_MAX_CHARS.value, width=width
  ):
    print(line)
  if _OUTPUT_JSON.value:
    with files.atomic_writer(_OUTPUT_JSON.value, "w") as stream:
      json.dump(replay_text.to_json(replayed, tokenizer), stream, indent=2, ensure_ascii=False)
    print(f"\nall {len(replayed.examples):,} examples: {_OUTPUT_JSON.value}")


if __name__ == "__main__":
  app.run(main)
