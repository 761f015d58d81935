"""Inputs for any signature of ours, chosen by the names and shapes of what it takes."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.serving.conformance.signatures import Signature, numpy_dtype
from albert_tf.serving.conformance.tensor_file import Call

TEXTS = (
  "The capital of France is [MASK].",
  "A [MASK] of birds flew over the old [MASK] trees.",
  "Paris",
)
PAIRS = ("It lies on the river Seine.", "Trees do not fly, birds do.", "Is it a city?")
QUESTIONS = ("Where does the river flow?", "Who sang all day long?", "What is green?")
CONTEXTS = (
  "The Seine is a river. It flows through Paris, and then to the sea.",
  "Small birds sang all day long in the old trees, while the sky was blue.",
  "The grass is green and the sky is blue.",
)
CHOICES = ("Paris", "the old trees", "the sea", "the grass")
# What a text may be, however odd: each gets an answer or an error, and harms nobody.
ODD_TEXTS = (
  b"",
  b" ",
  b"\x00",
  b"a\x00b",
  b"\xff\xfe\xf0\x9f",
  b"\xed\xa0\x80",
  "😀👩‍👩‍👧‍👦 e\u0301\u202e \ufeff".encode(),
  b"[CLS] [SEP] [MASK] <pad>",
  b"word " * 2000,
)
_LENGTH = 12  # Of rows of ids, where the signature leaves it free.
_NUM_POSITIONS = 2
_STRINGS = {
  "text": TEXTS,
  "text_a": TEXTS,
  "text_pair": PAIRS,
  "text_b": PAIRS,
  "pair": PAIRS,
  "question": QUESTIONS,
  "context": CONTEXTS,
  "passage": CONTEXTS,
}


def make_calls(signatures: Mapping[str, Signature]) -> list[Call]:
  """Two calls of every signature: a batch of three, and an empty one.

  Example:
    >>> [call.signature for call in make_calls(read_signatures("E/1"))]
    ['serving_default', 'serving_default', 'tokens', 'tokens']
  """
  calls = []
  for name, signature in signatures.items():
    inputs = make_inputs(signature, signatures)
    empty = {key: array[:0] for key, array in inputs.items()}
    for batch in (inputs, empty):
      calls.append(Call(name, batch, tuple(signature.outputs), signature.tensors()))
  return calls


def make_inputs(signature: Signature, signatures: Mapping[str, Signature]) -> dict[str, np.ndarray]:
  """A batch of three different rows."""
  if list(signature.inputs) == ["inputs"] and signature.inputs["inputs"].is_string:
    return {"inputs": make_examples(signatures["serving_default"])}
  return {
    name: _strings(name, spec.shape) if spec.is_string else _ids(name, spec.dtype, spec.shape)
    for name, spec in signature.inputs.items()
  }


def make_examples(strings: Signature, *, rows: Sequence[int] = (0, 1, 2)) -> np.ndarray:
  """Serialized tf.Examples with the strings that `serving_default` takes."""
  arrays = {name: _strings(name, spec.shape) for name, spec in strings.inputs.items()}
  examples = np.empty(len(rows), object)
  for i, row in enumerate(rows):
    example = tf.train.Example()
    for name, array in arrays.items():
      values = np.atleast_1d(array[row]).tolist()
      example.features.feature[name].bytes_list.value.extend(values)
    examples[i] = example.SerializeToString(deterministic=True)
  return examples


def odd_inputs(signature: Signature) -> dict[str, np.ndarray]:
  """A batch of `ODD_TEXTS` in every input of a signature of strings."""
  arrays = {}
  for name, spec in signature.inputs.items():
    array = _bytes(ODD_TEXTS)
    for size in (spec.shape or ())[1:]:
      array = np.stack([array] * (size if size > 0 else 2), axis=-1)
    arrays[name] = array
  return arrays


def _strings(name: str, shape: tuple[int, ...] | None) -> np.ndarray:
  if shape is not None and len(shape) == 2:
    number = shape[1] if shape[1] > 0 else len(CHOICES)
    rows = [[CHOICES[(i + k) % len(CHOICES)] for k in range(number)] for i in range(3)]
    return np.stack([_bytes(row) for row in rows])
  return _bytes(_STRINGS.get(name, TEXTS))


def _bytes(texts: Sequence[str | bytes]) -> np.ndarray:
  array = np.empty(len(texts), object)
  array[:] = [text.encode() if isinstance(text, str) else text for text in texts]
  return array


def _ids(name: str, dtype: int, shape: tuple[int, ...] | None) -> np.ndarray:
  """Ids of three rows, the second and third padded; all choices of a row are alike but for one id."""
  sizes = [size if size > 0 else _LENGTH for size in (shape or (-1, -1))[1:]]
  if name == "positions" and shape is not None and shape[1] < 0:
    sizes = [_NUM_POSITIONS]
  if len(sizes) == 2 and (shape or (0, -1))[1] < 0:
    sizes[0] = len(CHOICES)
  length = sizes[-1]
  array = np.zeros([3, *sizes], numpy_dtype(dtype))
  filled = [length, max(length - 2, 1), max(length // 2, 1)]
  for row, count in enumerate(filled):
    if name == "input_mask":
      array[row, ..., :count] = 1
    elif name == "segment_ids":
      array[row, ..., count // 2 : count] = 1
    elif name == "positions":
      array[row] = np.arange(length) + 1 + row
    elif name == "p_mask":
      array[row] = 1
      array[row, ..., count // 2 : count - 1] = 0
    else:
      array[row, ..., :count] = np.arange(count) % 10 + 5
      if array.ndim == 3:
        array[row, :, 1] += np.arange(array.shape[1], dtype=array.dtype)
  return array
