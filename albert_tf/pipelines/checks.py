"""What is wrong with record files: looked for before the first step, and when a reader fails."""

import collections
from collections.abc import Mapping, Sequence
import itertools
import re

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import PretrainingSpec, read_records
from albert_tf.records.example import decode_example
from albert_tf.records.features import ALL_FEATURES, INPUT_IDS, MASKED_LM_IDS, TOKEN_BOUNDARY
from albert_tf.records.shard_index import BLOCK_RECORDS, load_shard_index

_CHECKED_RECORDS = 200
_BYTE = re.compile(r"(?:corrupted|truncated) record at (\d+)")  # Of the length or, 12 further, of the data.


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


def check_enough_records(num_records: int, batch_size: int) -> None:
  """Refuses a batch larger than the whole training set."""
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


def find_fault(paths: Sequence[str], message: str) -> str | None:
  """Says which file is gone, or which is damaged at which byte; None where nothing wrong was found.

  Args:
    paths: the files that were read.
    message: of TensorFlow's reader, which may name the file, and the byte at which it found the damage.
  """
  suspects = [path for path in paths if path in message] or list(paths)
  for path in suspects:
    if not files.exists(path):
      return f"Record files must stay where they are while a run reads them. Received: {path}, which is gone."
  byte = _BYTE.search(message)
  if not byte:
    return None
  damaged = next((path for path in suspects if _damage_at(path, int(byte[1]))), None)
  return damaged and (
    f"Every record of a TFRecord file must be complete. Received: a damaged one at byte {byte[1]} of {damaged}. Copy "
    "the file again from its source, or make it again."
  )


def _damage_at(path: str, byte: int) -> bool:
  """Whether a record of the block that holds `byte` is damaged; reads that block alone."""
  index = load_shard_index(path)
  begins = index.offsets if index is not None else np.zeros(1, np.int64)
  block = max(int(np.searchsorted(begins, byte, side="right")) - 1, 0)
  try:
    collections.deque(itertools.islice(read_records(path, start=int(begins[block])), BLOCK_RECORDS), maxlen=0)
  except UserError:
    return True
  return False
