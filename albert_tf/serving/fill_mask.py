"""Fills the blanks of a sentence through an exported SavedModel; builds no Keras model."""

import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.serving.run_directory import CONFIG_NAME
from albert_tf.tokenization import AlbertTokenizer

MASK = "[MASK]"


class Candidate(NamedTuple):
  """One answer: the piece without its space mark, and its probability."""

  word: str
  probability: float


class FillMask:
  """A loaded `fill_mask` SavedModel.

  Args:
    path: a version directory, or the folder of versions (the highest is taken).

  Raises:
    UserError: there is no such export.

  Example:
    >>> FillMask("run/saved_model")("The sky is [MASK].")
    [[Candidate(word='blue', probability=0.41), …]]
  """

  def __init__(self, path: str):
    self.path = find_version(path)
    assets = os.path.join(self.path, "assets")
    self.tokenizer = AlbertTokenizer.from_pretrained(assets)
    self.config = AlbertConfig.from_json_file(os.path.join(assets, CONFIG_NAME))
    self._loaded = tf.saved_model.load(self.path)  # Holds the variables: a signature alone does not.
    if "mlm" not in self._loaded.signatures:
      raise UserError(
        f"A fill_mask export is needed. Received: {self.path}, with the signatures "
        f"{sorted(self._loaded.signatures)}. Export with --model fill_mask."
      )

  def __call__(self, text: str, *, top_k: int = 5) -> list[list[Candidate]]:
    """The best words for each [MASK] of `text`.

    Args:
      text: a sentence or more with at least one "[MASK]".
      top_k: answers a mask, at most as many as were exported.

    Returns:
      For each mask, in order, `top_k` candidates, best first.

    Raises:
      UserError: the text has no mask, or is too long.
    """
    if MASK not in text:
      raise UserError(f'The text must hold "{MASK}" where a word is wanted. Received: {text!r}.')
    batch = self.tokenizer([text], max_length=10**6, allow_mask=True)
    length = batch["input_ids"].shape[1]
    if length > self.config.max_position_embeddings:
      raise UserError(
        f"The text must not be longer than {self.config.max_position_embeddings} pieces. Received: {length}. "
        "Shorten it around the mask."
      )
    positions = np.nonzero(batch["input_ids"][0] == self.tokenizer.mask_id)[0][np.newaxis]
    inputs = {**batch, "positions": positions.astype(np.int32)}
    outputs = self._loaded.signatures["tokens"](**{k: tf.constant(v) for k, v in inputs.items()})
    ids, probabilities = outputs["top_ids"].numpy()[0], outputs["top_probabilities"].numpy()[0]
    if not 1 <= top_k <= ids.shape[1]:
      raise UserError(f"top_k must be between 1 and {ids.shape[1]}, which were exported. Received: {top_k}.")
    return [
      [Candidate(self.word(i), float(p)) for i, p in zip(row[:top_k], chances[:top_k], strict=True)]
      for row, chances in zip(ids, probabilities, strict=True)
    ]

  def word(self, index: int) -> str:
    """What a piece looks like in a sentence."""
    return self.tokenizer.id_to_piece(int(index)).removeprefix("▁") or "▁"


def find_version(path: str) -> str:
  """The SavedModel at `path`, or the highest version in it."""
  if os.path.exists(os.path.join(path, "saved_model.pb")):
    return path
  versions = [name for name in (os.listdir(path) if os.path.isdir(path) else []) if name.isdigit()]
  if not versions:
    raise UserError(
      f"A SavedModel or a folder of numbered versions is needed. Received: {path}, which is neither. "
      "Make one with tpu_scripts/export_saved_model.py."
    )
  return os.path.join(path, max(versions, key=int))
