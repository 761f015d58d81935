"""Inputs for any signature of ours, chosen by the names and shapes of what it takes."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.serving.bare_loader import Call
from albert_tf.serving.saved_model import PREDICT, Signature

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
)
LONG_TEXTS = (b"word " * 2000,)
_LENGTH = 12  # Of rows of ids, where the signature leaves it free.
_NUM_POSITIONS = 2
_STRINGS = {"text_pair": PAIRS, "question": QUESTIONS, "context": CONTEXTS}  # Others: TEXTS.


def make_calls(signatures: Mapping[str, Signature]) -> list[Call]:
  """Two calls of every signature: a batch of three, and an empty one."""
  calls = []
  for name, signature in signatures.items():
    inputs = make_inputs(signature, signatures)
    calls += [Call(name, inputs), Call(name, {key: array[:0] for key, array in inputs.items()})]
  return calls


def odd_calls(signatures: Mapping[str, Signature]) -> list[Call]:
  """Every signature of strings with `ODD_TEXTS` in every input, and with a long text, to which no other is padded."""
  calls = []
  for name, signature in signatures.items():
    strings = all(spec.dtype == tf.string for spec in signature.inputs.values())
    if strings and signature.method == PREDICT and "inputs" not in signature.inputs:
      calls += [
        Call(name, {key: _repeated(string_array(texts), spec) for key, spec in signature.inputs.items()})
        for texts in (ODD_TEXTS, LONG_TEXTS)
      ]
  return calls


def _repeated(rows: np.ndarray, spec: tf.TensorSpec) -> np.ndarray:
  """[B], or [B, 2] where a row has several strings."""
  return rows if spec.shape.rank == 1 else np.stack([rows, rows], axis=-1)


def make_inputs(signature: Signature, signatures: Mapping[str, Signature]) -> dict[str, np.ndarray]:
  """A batch of three different rows."""
  if list(signature.inputs) == ["inputs"] and signature.inputs["inputs"].dtype == tf.string:
    return {"inputs": make_examples(signatures["serving_default"])}
  return {
    name: _strings(name, spec) if spec.dtype == tf.string else _ids(name, spec)
    for name, spec in signature.inputs.items()
  }


def make_examples(strings: Signature) -> np.ndarray:
  """Serialized tf.Examples with the strings that `serving_default` takes."""
  arrays = {name: _strings(name, spec) for name, spec in strings.inputs.items()}
  examples = []
  for row in zip(*arrays.values(), strict=True):
    example = tf.train.Example()
    for name, value in zip(arrays, row, strict=True):
      example.features.feature[name].bytes_list.value.extend(np.atleast_1d(value).tolist())
    examples.append(example.SerializeToString(deterministic=True))
  return string_array(examples)


def _strings(name: str, spec: tf.TensorSpec) -> np.ndarray:
  if spec.shape.rank == 1:
    return string_array(_STRINGS.get(name, TEXTS))
  return np.stack([string_array(CHOICES[row:] + CHOICES[:row]) for row in range(3)])


def string_array(texts: Sequence[str | bytes]) -> np.ndarray:
  """[B] bytes of any length, NULs included."""
  array = np.empty(len(texts), object)
  array[:] = [text.encode() if isinstance(text, str) else text for text in texts]
  return array


def _ids(name: str, spec: tf.TensorSpec) -> np.ndarray:
  """Ids of three rows, the second and third padded; all choices of a row are alike but for one id."""
  length = spec.shape[-1] or (_NUM_POSITIONS if name == "positions" else _LENGTH)
  array = np.zeros([3, *[len(CHOICES)] * (spec.shape.rank - 2), length], spec.dtype.as_numpy_dtype)
  for row, count in enumerate((length, max(length - 2, 1), max(length // 2, 1))):
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
