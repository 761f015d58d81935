"""What can be seen to be wrong with records before the first step."""

from collections.abc import Sequence
import itertools

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.records import PretrainingSpec, read_records
from albert_tf.records.parse import feature_description

_CHECKED_RECORDS = 200


def check_records(paths: Sequence[str], *, spec: PretrainingSpec, vocab_size: int) -> None:
  """Looks at the first records of the first file that has any.

  Args:
    paths: TFRecord files.
    spec: the lengths that training expects.
    vocab_size: rows of the model's embedding table.

  Raises:
    UserError: a feature that is missing or has another length, or a piece id beyond the vocabulary.
  """
  description = feature_description(spec)
  for path in paths:
    records = list(itertools.islice(read_records(path), _CHECKED_RECORDS))
    for record, data in enumerate(records):
      example = tf.train.Example.FromString(data)
      _check_features(example, description, where=f"{path}, record {record}")
      for name in ("input_ids", "masked_lm_ids"):
        largest = max(example.features.feature[name].int64_list.value, default=0)
        if largest >= vocab_size:
          raise UserError(
            "The records' piece ids must lie within the model's vocabulary. Received: "
            f"id {largest} in {name} of {path}, record {record}; the model's vocab_size is {vocab_size}. "
            "Use the configuration of the vocabulary that the records were made with, or make them again."
          )
    if records:
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


def _check_features(
  example: tf.train.Example, description: dict[str, tf.io.FixedLenFeature], *, where: str
) -> None:
  for name, feature in description.items():
    found = example.features.feature[name]
    values = found.float_list.value if feature.dtype == tf.float32 else found.int64_list.value
    if len(values) != feature.shape[0]:
      raise UserError(
        "The records must have the lengths that training expects. Received: "
        f"{len(values)} values of {name}, expected {feature.shape[0]} ({where}). "
        "Set --max_seq_length and --max_predictions_per_seq to those the records were made with."
      )
