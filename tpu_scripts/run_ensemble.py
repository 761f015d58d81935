"""What `--ensemble_of` does in the fine-tuning commands: many runs' answers become one, and no model is run."""

from collections.abc import Callable
import os
from typing import TYPE_CHECKING, Any

from absl import flags

from albert_tf.errors import UserError

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings

FLAGS = flags.FLAGS


def run_ensemble(
  prepare: "Callable[[Start, FineTuneSettings], Any]", read_settings: "Callable[[], FineTuneSettings]"
) -> None:
  """Chooses members, and leaves the ensemble's directory; the first run's tokenizer, lengths and columns read the data.

  Args:
    prepare: reads the examples: what the command gives `finetuning_flags.run`.
    read_settings: of the flags.
  """
  from albert_tf.configs import AlbertConfig
  from albert_tf.finetuning.engine import ensemble, record
  from albert_tf.finetuning.initialize import Start
  from albert_tf.tokenization import load_tokenizer

  refused = [name for name in ("do_train", "init_checkpoint", "ensemble") if FLAGS[name].value]
  if refused:
    raise UserError(
      f"--ensemble_of combines what runs have answered. Received: it with --{refused[0]}. Leave that out; a recipe "
      "is not needed either."
    )
  directories = ensemble.run_directories(FLAGS.ensemble_of)
  first = directories[0]
  FLAGS["init_checkpoint"].value, FLAGS["do_eval"].value = first, True
  config = AlbertConfig.from_json_file(os.path.join(first, record.CONFIG_FILE))
  settings = read_settings()
  start = Start(config=config, tokenizer=load_tokenizer(first), checkpoint=None, source=first)
  prepared = prepare(start, settings)
  predict = (prepared.settings or settings).do_predict
  results = ensemble.combine(prepared.task, directories, output_dir=FLAGS.output_dir, predict=predict)
  print(*ensemble.lines(results), f"results: {os.path.join(FLAGS.output_dir, record.RESULTS_FILE)}", sep="\n")
