"""The engine: one task, one set of weights to start from, one or several seeds, with Keras' `model.fit`."""

from typing import Any

from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.task import FineTuningTask


def fine_tune(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: Start,
  output_dir: str,
  flags_text: str = "",
) -> dict[str, Any]:
  """Trains (`do_train`), evaluates (`do_eval`), predicts (`do_predict`) and leaves a fine-tuned run directory.

  Args:
    task: the task on its data, made with `start.tokenizer`.
    settings: how.
    start: configuration, tokenizer and weights, of `initialize.read_start`.
    output_dir: the run directory; new, empty, or the same task's.
    flags_text: the command's resolved flags, written to flags.txt.

  Returns:
    What `results.json` holds.

  Raises:
    UserError: the weights do not fit, or the directory holds something else.
  """
  raise NotImplementedError
