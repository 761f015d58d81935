"""Small pretraining records and settings for tests of the training engine."""

from collections.abc import Mapping
import dataclasses
import pathlib
import types
from typing import Any

import numpy as np

from albert_tf.configs import AlbertConfig
from albert_tf.records import PretrainingSpec, RecordRules, frame_record
from albert_tf.records.features import FLOAT_FEATURES
from albert_tf.records.tfrecord import encode_packed, pack_varints

SPEC = PretrainingSpec(max_seq_length=10, max_predictions_per_seq=3)
VOCAB_SIZE = 37
RULES = RecordRules(SPEC, vocab_size=VOCAB_SIZE, type_vocab_size=2)


def tiny_config(**changes: Any) -> AlbertConfig:
  """V=37, E=6, H=12, 2 layers, N=3, F=20: distinct sizes on every axis."""
  values = {
    "vocab_size": VOCAB_SIZE,
    "embedding_size": 6,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
  }
  return dataclasses.replace(AlbertConfig.from_name("tiny"), **{**values, **changes})


def ids_of(vocab_size: int, word_starts: np.ndarray | None = None) -> types.SimpleNamespace:
  """What the drawing of masks asks of a tokenizer."""
  ids = {"pad_id": 0, "cls_id": 2, "sep_id": 3, "mask_id": 4, "special_ids": [0, 1, 2, 3, 4]}
  return types.SimpleNamespace(vocab_size=vocab_size, word_starts=lambda rule: word_starts, **ids)


def encode_example(features: Mapping[str, np.ndarray]) -> bytes:
  """A serialized `tf.train.Example` of the eight features, of any lengths."""
  payloads = {}
  for name, values in features.items():
    if name in FLOAT_FEATURES:
      payloads[name] = values.astype("<f4").tobytes()
    else:
      payloads[name] = pack_varints(values)
  return encode_packed(payloads)


def random_examples(count: int, *, seed: int) -> list[dict[str, np.ndarray]]:
  """Examples whose number of predictions varies, so that a wrong denominator shows."""
  rng = np.random.default_rng(seed)
  examples = []
  for _ in range(count):
    length = int(rng.integers(5, SPEC.max_seq_length + 1))
    predictions = int(rng.integers(1, SPEC.max_predictions_per_seq + 1))
    real = np.arange(SPEC.max_seq_length) < length
    used = np.arange(SPEC.max_predictions_per_seq) < predictions
    examples.append(
      {
        "input_ids": rng.integers(5, VOCAB_SIZE, SPEC.max_seq_length) * real,
        "input_mask": real.astype(np.int64),
        "segment_ids": (np.arange(SPEC.max_seq_length) >= length // 2) * real,
        "token_boundary": np.ones(SPEC.max_seq_length, np.int64),
        "masked_lm_positions": np.sort(
          rng.choice(length, SPEC.max_predictions_per_seq, replace=False)
        )
        * used,
        "masked_lm_ids": rng.integers(5, VOCAB_SIZE, SPEC.max_predictions_per_seq) * used,
        "masked_lm_weights": used.astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, 1),
      }
    )
  return examples


def write_records(path: pathlib.Path, examples: list[Mapping[str, np.ndarray]]) -> str:
  path.write_bytes(b"".join(frame_record(encode_example(example)) for example in examples))
  return str(path)


def write_train_and_eval(folder: pathlib.Path) -> tuple[str, str]:
  """Paths of 70 records to train with and 13 to evaluate."""
  return (
    write_records(folder / "train-0.tfrecord", random_examples(70, seed=1)),
    write_records(folder / "eval-0.tfrecord", random_examples(13, seed=2)),
  )
