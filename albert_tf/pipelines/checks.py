"""What can be seen to be wrong with records before the first step."""

from collections.abc import Mapping, Sequence
import itertools

import numpy as np

from albert_tf.errors import UserError
from albert_tf.records import PretrainingSpec, read_records
from albert_tf.records.damage import read_whole_records
from albert_tf.records.decode import decode_record
from albert_tf.records.features import ALL_FEATURES, INPUT_IDS, MASKED_LM_IDS, TOKEN_BOUNDARY

_CHECKED_RECORDS = 200


def check_records(
  paths: Sequence[str],
  *,
  spec: PretrainingSpec,
  vocab_size: int,
  skip_damaged: bool = False,
  at_most: int = _CHECKED_RECORDS,
) -> None:
  """Looks at the first records.

  Args:
    paths: TFRecord files.
    spec: the lengths that training expects.
    vocab_size: rows of the model's embedding table.
    skip_damaged: look past damaged records instead of refusing them.
    at_most: so many of all files together.

  Raises:
    UserError: a damaged record, a feature that is missing or has another length, or a piece id beyond the vocabulary.
  """
  for path in paths:
    read = read_whole_records(path) if skip_damaged else read_records(path)
    for record, data in enumerate(itertools.islice(read, at_most)):
      features = decode_record(data, spec)
      _check_lengths(features, spec, where=f"{path}, record {record}")
      for name in (INPUT_IDS, MASKED_LM_IDS):
        largest = int(features[name].max(initial=0))
        if largest >= vocab_size:
          raise UserError(
            "The records' piece ids must lie within the model's vocabulary. Received: "
            f"id {largest} in {name} of {path}, record {record}; the model's vocab_size is {vocab_size}. "
            "Use the configuration of the vocabulary that the records were made with, or make them again."
          )
      at_most -= 1
    if at_most <= 0:
      return


def check_enough_records(num_records: int, batch_size: int) -> None:
  """Refuses a batch larger than the whole training set.

  Raises:
    UserError: there are fewer records than one batch holds.
  """
  if num_records < batch_size:
    raise UserError(
      "There must be at least as many training records as one batch holds. Received: "
      f"{num_records} records, train_batch_size={batch_size}. Make more records or use a smaller batch."
    )


def _check_lengths(features: Mapping[str, np.ndarray], spec: PretrainingSpec, *, where: str) -> None:
  for name in ALL_FEATURES:
    if name == TOKEN_BOUNDARY:  # Training has no use for it.
      continue
    found = len(features.get(name, ()))
    if found != spec.length(name):
      raise UserError(
        "The records must have the lengths that training expects. Received: "
        f"{found} values of {name}, expected {spec.length(name)} ({where}). "
        "Set --max_seq_length and --max_predictions_per_seq to those the records were made with."
      )
