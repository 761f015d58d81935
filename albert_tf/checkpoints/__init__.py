"""Checkpoints of the original release, of TensorFlow Hub and of Hugging Face, in and out."""

from albert_tf.checkpoints.checkpoint import Checkpoint, find_checkpoint, load_tokenizer, read_checkpoint
from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.load import (
  ANY_HEAD,
  FINETUNED_HEADS,
  PRETRAINING_HEADS,
  MatchReport,
  load_weights,
)
from albert_tf.configs.conversion import ConvertOptions

__all__ = [
  "ANY_HEAD",
  "FINETUNED_HEADS",
  "PRETRAINING_HEADS",
  "Checkpoint",
  "ConvertOptions",
  "MatchReport",
  "convert",
  "find_checkpoint",
  "load_tokenizer",
  "load_weights",
  "read_checkpoint",
]
