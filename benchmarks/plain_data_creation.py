"""The original's algorithm of pretraining data, restated plainly: the other side of data_creation.py.

One instance at a time, in Python lists, with every pass over a document
repeating the word tests: the algorithm of google-research/albert's
create_pretraining_data.py, with its costs (sets made and flags read for every
piece, twice for words that start), on today's Python and libraries. It leaves
out the original's other work: a log line for each conversion, and
Python 2 compatibility in every string.
"""

from collections.abc import Sequence
import random
import string
from typing import Any, NamedTuple

from absl import flags
import numpy as np

from albert_tf.tokenization import AlbertTokenizer

# The original reads its flags from absl for every piece it tests.
_FLAGS = flags.FlagValues()
flags.DEFINE_string("spm_model_file", "30k.model", "", flag_values=_FLAGS)
flags.DEFINE_bool("do_whole_word_mask", True, "", flag_values=_FLAGS)
_FLAGS.mark_as_parsed()


def tokenize_documents(
  documents: Sequence[Sequence[str]], tokenizer: AlbertTokenizer
) -> list[list[list[str]]]:
  """Pieces of each sentence of each document."""
  tokenized = []
  for document in documents:
    sentences = [tokenizer.encode_pieces(sentence) for sentence in document]
    sentences = [sentence for sentence in sentences if sentence]
    if sentences:
      tokenized.append(sentences)
  return tokenized


def is_start_piece(piece: str) -> bool:
  """Whether a piece starts a word. Like the original, it makes its sets anew for each piece."""
  if not _FLAGS.spm_model_file:
    return not piece.startswith("##")
  punctuation = set(string.punctuation) - set("'<=>")
  letters = set(string.ascii_lowercase)
  if piece.startswith("▁") or piece.startswith("<") or piece in punctuation:  # noqa: PIE810
    return True
  return not all([char.lower() in letters.union(punctuation) for char in piece])  # noqa: C419


def make_instances(
  documents: list[list[list[str]]],
  index: int,
  *,
  max_seq_length: int,
  short_seq_prob: float,
  masked_lm_prob: float,
  max_predictions: int,
  vocabulary: list[str],
  rng: random.Random,
) -> list[dict[str, Any]]:
  """All instances of one pass over one document."""
  document = documents[index]
  limit = max_seq_length - 3  # Without [CLS] and two [SEP].
  target = limit
  if rng.random() < short_seq_prob:
    target = rng.randint(2, limit)
  instances = []
  chunk: list[list[str]] = []
  length = 0
  i = 0
  while i < len(document):
    chunk.append(document[i])
    length += len(document[i])
    if i == len(document) - 1 or length >= target:
      a_end = 1
      if len(chunk) > 1:
        a_end = rng.randint(1, len(chunk) - 1)
      tokens_a = [piece for sentence in chunk[:a_end] for piece in sentence]
      tokens_b: list[str] = []
      label = 0
      if len(chunk) == 1:
        # One sentence has no other half: B is from another document.
        label = 1
        wanted = target - len(tokens_a)
        for _ in range(10):
          other_index = rng.randint(0, len(documents) - 1)
          if other_index != index:
            break
        start = rng.randint(0, len(documents[other_index]) - 1)
        for sentence in documents[other_index][start:]:
          tokens_b.extend(sentence)
          if len(tokens_b) >= wanted:
            break
        i -= len(chunk) - a_end
      else:
        tokens_b = [piece for sentence in chunk[a_end:] for piece in sentence]
        if rng.random() < 0.5:
          label = 1
          tokens_a, tokens_b = tokens_b, tokens_a
      _truncate(tokens_a, tokens_b, limit, rng)
      tokens = ["[CLS]", *tokens_a, "[SEP]", *tokens_b, "[SEP]"]
      segments = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
      masked = mask_tokens(tokens, masked_lm_prob, max_predictions, vocabulary, rng)
      instances.append({"segments": segments, "label": label, "masked": masked})
      chunk = []
      length = 0
    i += 1
  return instances


def _truncate(tokens_a: list[str], tokens_b: list[str], limit: int, rng: random.Random) -> None:
  """Takes tokens off either end of the longer one, one by one."""
  while len(tokens_a) + len(tokens_b) > limit:
    longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
    if rng.random() < 0.5:
      del longer[0]
    else:
      longer.pop()


class Masked(NamedTuple):
  """An instance with its masks."""

  tokens: list[str]  # What the model reads.
  positions: list[int]
  answers: list[str]
  boundary: list[int]  # 1 where a word starts.


def mask_tokens(
  tokens: list[str],
  masked_lm_prob: float,
  max_predictions: int,
  vocabulary: list[str],
  rng: random.Random,
) -> Masked:
  # Which positions are one word.
  words: list[list[int]] = []
  boundary = [0] * len(tokens)
  for position, token in enumerate(tokens):
    if token in ("[CLS]", "[SEP]"):
      boundary[position] = 1
      continue
    if _FLAGS.do_whole_word_mask and words and not is_start_piece(token):
      words[-1].append(position)
    else:
      words.append([position])
      if is_start_piece(token):
        boundary[position] = 1

  # n-grams of words, in random order; the length of each is drawn when its turn comes.
  output = list(tokens)
  budget = min(max_predictions, max(1, round(len(tokens) * masked_lm_prob)))
  sizes = np.arange(1, 4, dtype=np.int64)
  probabilities = 1.0 / np.arange(1, 4)
  probabilities /= probabilities.sum(keepdims=True)
  candidates = []
  for first in range(len(words)):
    candidates.append([words[first : first + n] for n in sizes])
  rng.shuffle(candidates)
  chosen: list[tuple[int, str]] = []
  covered: set[int] = set()
  for windows in candidates:
    if len(chosen) >= budget:
      break
    size = int(np.random.choice(sizes[: len(windows)], p=probabilities))
    pieces = [position for word in windows[size - 1] for position in word]
    size -= 1
    # A shorter one may still fit.
    while len(chosen) + len(pieces) > budget and size > 0:
      pieces = [position for word in windows[size - 1] for position in word]
      size -= 1
    if len(chosen) + len(pieces) > budget or any(position in covered for position in pieces):
      continue
    for position in pieces:
      covered.add(position)
      if rng.random() < 0.8:
        shown = "[MASK]"
      elif rng.random() < 0.5:
        shown = tokens[position]
      else:
        shown = vocabulary[rng.randint(0, len(vocabulary) - 1)]
      output[position] = shown
      chosen.append((position, tokens[position]))
  chosen.sort()
  return Masked(
    tokens=output,
    positions=[position for position, _ in chosen],
    answers=[answer for _, answer in chosen],
    boundary=boundary,
  )


def serialize(
  instance: dict[str, Any], tokenizer: AlbertTokenizer, *, max_seq_length: int, max_predictions: int
) -> bytes:
  """A `tf.train.Example`, filled value by value."""
  import tensorflow as tf

  def ids(pieces: list[str]) -> list[int]:
    return [tokenizer.ids.get(piece, tokenizer.unk_id) for piece in pieces]

  def padded(values: list[int], length: int) -> list[int]:
    return list(values) + [0] * (length - len(values))

  masked: Masked = instance["masked"]
  integers = {
    "input_ids": padded(ids(masked.tokens), max_seq_length),
    "input_mask": padded([1] * len(masked.tokens), max_seq_length),
    "segment_ids": padded(instance["segments"], max_seq_length),
    "token_boundary": padded(masked.boundary, max_seq_length),
    "masked_lm_positions": padded(masked.positions, max_predictions),
    "masked_lm_ids": padded(ids(masked.answers), max_predictions),
    "next_sentence_labels": [instance["label"]],
  }
  features = {
    name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    for name, values in integers.items()
  }
  weights = [1.0] * len(masked.positions)
  weights += [0.0] * (max_predictions - len(weights))
  features["masked_lm_weights"] = tf.train.Feature(float_list=tf.train.FloatList(value=weights))
  data: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
  return data


def create(
  documents: Sequence[Sequence[str]],
  path: str,
  tokenizer: AlbertTokenizer,
  *,
  dupe_factor: int,
  seed: int,
  max_seq_length: int,
  max_predictions: int,
  masked_lm_prob: float = 0.15,
  short_seq_prob: float = 0.1,
) -> int:
  """Text to one record file; returns the number of instances."""
  import tensorflow as tf

  # The original draws from both generators too.
  rng = random.Random(seed)
  np.random.seed(seed)
  tokenized = tokenize_documents(documents, tokenizer)
  rng.shuffle(tokenized)
  instances: list[dict[str, Any]] = []
  for _ in range(dupe_factor):
    for index in range(len(tokenized)):
      instances += make_instances(
        tokenized,
        index,
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
        masked_lm_prob=masked_lm_prob,
        max_predictions=max_predictions,
        vocabulary=tokenizer.pieces,
        rng=rng,
      )
  rng.shuffle(instances)
  with tf.io.TFRecordWriter(path) as writer:
    for instance in instances:
      writer.write(
        serialize(
          instance, tokenizer, max_seq_length=max_seq_length, max_predictions=max_predictions
        )
      )
  return len(instances)
