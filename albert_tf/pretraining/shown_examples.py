"""What an update trains on, as text, for `run_pretrain.py --show_update`."""

from collections.abc import Iterator
import dataclasses

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining.inputs import checked_input
from albert_tf.pretraining.settings import PretrainingSettings
from albert_tf.records import features as names
from albert_tf.tokenization import load_tokenizer
from albert_tf.tokenization.masked_text import masked_text

_NUM_SHOWN = 3


def examples_of_update(settings: PretrainingSettings, update: int) -> Iterator[str]:
  """Yields the first examples of an update, read and masked as the run does it.

  Args:
    settings: the run; its directory is not read.
    update: 1, 2, …; update k takes the examples (k - 1) B to k B - 1 of the stream.

  Raises:
    UserError: the records are damaged or do not fit the run, or there is no vocabulary to show them.
  """
  if not settings.tokenizer_path:
    raise UserError(
      "Examples are shown as text, which needs the vocabulary. Received: records without one in "
      "their folder. Name it with --spm_model_file."
    )
  tokenizer = load_tokenizer(settings.tokenizer_path)
  # Held-out records are not shown, so they are not read.
  settings = dataclasses.replace(settings, eval_input_files=())
  inputs = checked_input(settings, tf.distribute.get_strategy())
  batch_size = settings.step.global_batch_size
  start_position = (update - 1) * batch_size
  with inputs.locate_damaged_record(start_position, batch_size):
    batch = next(inputs.training_iterator(start_position))
  arrays = {name: values.numpy() for name, values in batch.items()}

  for row in range(min(_NUM_SHOWN, batch_size)):
    is_text = arrays[names.INPUT_MASK][row] > 0
    is_used = arrays[names.MASKED_LM_WEIGHTS][row] > 0
    text = masked_text(
      arrays[names.INPUT_IDS][row][is_text],
      arrays[names.MASKED_LM_POSITIONS][row][is_used],
      arrays[names.MASKED_LM_IDS][row][is_used],
      tokenizer,
    )
    label = arrays[names.SENTENCE_ORDER_LABELS][row]
    yield (
      f"--- update {update:,}, example {row}: {is_text.sum()} tokens, {is_used.sum()} predictions, "
      f"label {label}\n{text}"
    )
