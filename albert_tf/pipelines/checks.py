"""What is wrong with record files, looked for before the first step."""

from collections.abc import Mapping, Sequence
import itertools

import numpy as np

from albert_tf.errors import UserError
from albert_tf.records import PretrainingSpec, read_records
from albert_tf.records.features import ALL_FEATURES, INPUT_IDS, MASKED_LM_IDS, TOKEN_BOUNDARY
from albert_tf.records.parse import decode_example

_CHECKED_RECORDS = 200


def check_records(
  paths: Sequence[str],
  *,
  spec: PretrainingSpec,
  vocab_size: int,
  at_most: int = _CHECKED_RECORDS,
) -> None:
  """Looks at the first `at_most` records of all files together.

  Args:
    spec: the lengths that training expects.
    vocab_size: rows of the model's embedding table.

  Raises:
    UserError: a damaged record, a feature that is missing or has another length, or a piece id beyond the vocabulary.
  """
  for path in paths:
    for record, data in enumerate(itertools.islice(read_records(path), at_most)):
      features = decode_example(data)
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
