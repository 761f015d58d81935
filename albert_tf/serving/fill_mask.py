"""Fills the blanks of a sentence through an exported SavedModel; builds no Keras model."""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.saved_model import find_version

MASK = "[MASK]"


class Candidate(NamedTuple):
  """One answer: the piece without its space mark, and its probability."""

  word: str
  probability: float


class FillMask:
  """A loaded `fill_mask` SavedModel: a version directory, or the folder of versions (the highest is taken).

  Example:
    >>> FillMask("run/saved_model")("The sky is [MASK].")
    [[Candidate(word='blue', probability=0.41), …]]
  """

  def __init__(self, path: str):
    import tensorflow_text  # noqa: F401  Registers the ops of the exported tokenizer.

    self.path = find_version(path)
    self._loaded = tf.saved_model.load(self.path)  # Holds the variables: a signature alone does not.
    self._signature = self._loaded.signatures["serving_default"]
    if "words" not in self._signature.structured_outputs:
      raise UserError(
        f"A fill_mask export is needed. Received: {self.path}, which gives "
        f"{sorted(self._signature.structured_outputs)}. Export with --model fill_mask."
      )

  def __call__(self, text: str, *, top_k: int = 5) -> list[list[Candidate]]:
    """For each [MASK] of `text`, in order, the `top_k` best words, at most as many as were exported."""
    if MASK not in text:
      raise UserError(f'The text must hold "{MASK}" where a word is wanted. Received: {text!r}.')
    outputs = {name: tensor.numpy() for name, tensor in self._signature(text=tf.constant([text])).items()}
    words, probabilities = outputs["words"][0], outputs["probabilities"][0]
    if outputs["num_masks"][0] < text.count(MASK):
      raise UserError(
        f"Every {MASK} must lie within the length the model knows. Received: {text.count(MASK)} of them, and "
        f"{outputs['num_masks'][0]} within it. Shorten the text around the mask."
      )
    if not 1 <= top_k <= words.shape[1]:
      raise UserError(
        f"top_k must be between 1 and {words.shape[1]}, which were exported. Received: {top_k}."
      )
    return [
      [Candidate(word.decode(), float(p)) for word, p in zip(row[:top_k], chances[:top_k], strict=True)]
      for row, chances in zip(words, probabilities, strict=True)
    ]
