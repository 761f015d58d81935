"""Records with changed values and right checksums are refused by name, or trained as they are."""

import math
import pathlib

from fuzz import readers
from fuzz.child import Child
from fuzz.fuzzing import fuzz
from hypothesis import example
from hypothesis import strategies as st
import numpy as np
import pytest
from support.tiny_records import encode_example, random_examples

from albert_tf.records import frame_record
from albert_tf.records.features import ALL_FEATURES, FLOAT_FEATURES

NUM_RECORDS = 256  # More than are checked at the start, and whole batches.
EXAMPLES = random_examples(NUM_RECORDS, seed=4)
FRAMED = [frame_record(encode_example(example)) for example in EXAMPLES]
INTEGERS = st.sampled_from([-1, 0, 1, 2, 7, 36, 37, 2**31, 2**32 + 7, -(2**63)])
WEIGHTS = st.sampled_from([math.nan, math.inf, -1.0, -0.0, 0.5, 1.0, 1.5, 1e6])


Change = tuple[str, int, float]  # Feature, position and new value.


@st.composite
def changes(draw: st.DrawFn) -> Change:
  name = draw(st.sampled_from(ALL_FEATURES))
  position = draw(st.integers(0, len(EXAMPLES[0][name]) - 1))
  return name, position, draw(WEIGHTS if name in FLOAT_FEATURES else INTEGERS)


def file_with(number: int, changed: list[Change]) -> bytes:
  """The records; the one of this number has other values."""
  features = {name: values.copy() for name, values in EXAMPLES[number].items()}
  for name, position, value in changed:
    features[name][position] = value
  for name in set(ALL_FEATURES) - FLOAT_FEATURES:
    features[name] = features[name].astype(np.uint64)  # As a varint has negative numbers.
  framed = frame_record(encode_example(features))
  return b"".join([*FRAMED[:number], framed, *FRAMED[number + 1 :]])


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "eval"])
@example(number=255, changed=[("next_sentence_labels", 0, 7)])
@example(number=200, changed=[("masked_lm_weights", 0, math.nan)])
@example(number=200, changed=[("input_ids", 1, 2**32 + 7)])
@example(number=255, changed=[("token_boundary", 0, 0), ("input_ids", 1, 7)])  # Both are legal.
@fuzz(
  number=st.sampled_from([0, 199, 200, NUM_RECORDS - 1]),
  changed=st.lists(changes(), min_size=1, max_size=2),
  cost=10,
)
def test_changed_values(
  child: Child, tmp_path: pathlib.Path, number: int, changed: list[Change], split: str
) -> None:
  (tmp_path / "train-0.tfrecord").write_bytes(b"".join(FRAMED))
  path = tmp_path / f"{split}-0.tfrecord"
  path.write_bytes(file_with(number, changed))
  child(readers.batches, path, split)
