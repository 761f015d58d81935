"""Settings that decide the content of the records, on every machine."""

import dataclasses
from typing import Any, Literal, Self

import numpy as np

from albert_tf.records import PretrainingSpec
from albert_tf.records.masking import ngram_probabilities
from albert_tf.settings import Settings, setting
from albert_tf.tokenization import WORD_RULES

SPLITS = ("train", "eval")
Json = dict[str, Any]  # An object of a JSON file.
_MOST_SHARDS = 99_999  # Five digits in a name.
_SHARD_BYTES = 192e6  # Size of a file, where the corpus decides their number.
# About the bytes of records that a byte of text gives in one pass; only the number of files depends
# on it.
RECORD_BYTES_PER_TEXT_BYTE = 1.3
PASSES_OF_READING = 2  # So many passes cost as much as reading and tokenizing.


class RecordSettings(Settings):
  """Every choice that changes the bytes of the records."""

  # The sequences.
  max_seq_length: int = setting(
    512,
    "Tokens of a sequence, including [CLS], [SEP] and padding; any number from 5 to 65536. The "
    "model needs as many positions: the named sizes have 512.",
  )
  max_predictions_per_seq: int = setting(
    20,
    "Largest number of masked tokens in a sequence. It caps --masked_lm_prob: 20 of 512 tokens are "
    "4 %. The whole 15 % are 77 of 512, or 20 of 128.",
  )
  masked_lm_prob: float = setting(
    0.15, "Share of the tokens that are masked; 0: none.", minimum=0, maximum=1
  )
  dupe_factor: int = setting(
    1,
    "Number of passes over the text; each divides and masks it differently, and takes its own "
    "disk. With 1, train with --masking=fresh. The original release: 40.",
    minimum=1,
    maximum=2**31 - 1,
  )
  # The segments.
  short_seq_prob: float = setting(
    0.1,
    "Share of instances with a random shorter length, as BERT has, so that a model sees short texts "
    "too. With 0 rows are fuller; no models were compared.",
    minimum=0,
    maximum=1,
  )
  sentence_pair: Literal["sop", "nsp", "none", "ordered"] = setting(
    "sop",
    "The segments, and what label 1 means. sop: swapped. nsp: the second is of another document. "
    "ordered: two segments without labels. none: one segment.",
  )
  # The masks.
  ngram: int = setting(
    3, "Longest n-gram that is masked as a whole, in words.", minimum=1, maximum=64
  )
  ngram_distribution: str = setting(
    "inverse",
    "Probability of length n: inverse (1/n, the paper), uniform, reverse (longest most often), or "
    "a list of weights.",
  )
  whole_word: str = setting(
    "original",
    "What is masked as one word. original: as the original code does, each token with non-ASCII "
    "letters is a word. sentencepiece: text between spaces. none: each token. Words of a segmenter "
    "(jieba, MeCab) cannot be given, except by spaces in the text: no token crosses one. Every request "
    "then needs them too; in scripts without spaces (Khmer, Thai) each token stays a word.",
    choices=tuple(WORD_RULES),
  )
  # The splits and files, and all choices together.
  eval_fraction: float = setting(
    0.01,
    "Share of the documents, whatever their length, that is held out for evaluation; always the "
    "first one. 0: none. For a text that is for evaluation alone give 0, and name its train-* files "
    "in run_pretrain.py --eval_input_file.",
    minimum=0,
    maximum=0.5,
  )
  random_seed: int = setting(
    12345,
    "Seed of all random choices, and of which documents are held out. With one seed for all sources "
    "of a run, copies of a document, except a first one, are in one split.",
    minimum=0,
    maximum=2**63 - 1,
  )
  num_shards: int = setting(
    0,
    "Number of training files, each a random sample of the corpus; 0: one for each 192 MB of "
    "records. Evaluation files are of that size. Workers, GPUs and hosts need no multiple of it.",
    minimum=0,
    maximum=_MOST_SHARDS,
  )
  compatibility: Literal["none", "original"] = setting(
    "none",
    "original: make records as google-research/albert does; docs/records.md lists the differences.",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    # They check the lengths and the distribution.
    PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq)
    _ = self.ngram_probabilities

  @property
  def max_num_tokens(self) -> int:
    """Room for text, without [CLS] and the [SEP] of each segment."""
    if self.sentence_pair == "none":
      return self.max_seq_length - 2
    return self.max_seq_length - 3

  @property
  def is_original(self) -> bool:
    return self.compatibility == "original"

  @property
  def ngram_probabilities(self) -> np.ndarray:
    """float64 [ngram]: p(n) for n = 1 … ngram."""
    return ngram_probabilities(self.ngram, self.ngram_distribution)

  def with_num_shards(self, text_bytes: int) -> Self:
    """The settings with the number of files, if they leave it open, for a corpus of `text_bytes`."""
    if self.num_shards:
      return self
    # An estimate is enough: files of 150 or 250 MB are as good.
    record_bytes = RECORD_BYTES_PER_TEXT_BYTE * text_bytes * self.dupe_factor
    num_train = round((1 - self.eval_fraction) * record_bytes / _SHARD_BYTES)
    return dataclasses.replace(self, num_shards=min(max(1, num_train), _MOST_SHARDS))

  def num_shards_of(self, split: str) -> int:
    if split == "train":
      return self.num_shards
    if self.eval_fraction == 0:
      return 0
    # Of about the size of the others.
    return max(1, round(self.num_shards * self.eval_fraction / (1 - self.eval_fraction)))

  def shard_names(self, split: str) -> list[str]:
    """Names of the files of a split."""
    total = self.num_shards_of(split)
    return [f"{split}-{shard:05d}-of-{total:05d}.tfrecord" for shard in range(total)]
