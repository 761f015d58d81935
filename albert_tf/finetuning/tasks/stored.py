"""The scores that a run leaves beside its predictions, in full precision, and their mean over runs."""

from collections.abc import Iterable, Sequence
import hashlib
import io
import os
from typing import Any

import numpy as np
from scipy import special

from albert_tf import files
from albert_tf.errors import UserError


def scores_file(directory: str, split: str) -> str:
  return os.path.join(directory, f"scores_{split}.npz")


def write_scores(directory: str, split: str, scores: Any, *, examples: Iterable[str]) -> None:
  """Writes `scores_SPLIT.npz`: `scores` float32 `[n, C]`, and in `examples` whose they are."""
  with files.atomic_writer(scores_file(directory, split)) as stream:
    np.savez(stream, scores=np.asarray(scores, np.float32), examples=np.array(_digest(examples)))


def read_scores(directory: str, split: str, *, examples: Iterable[str]) -> np.ndarray:
  """The scores `[n, C]` that a run left for these very examples.

  Raises:
    UserError: it left none, or those of other examples.
  """
  path = scores_file(directory, split)
  if not files.exists(path):
    command = "--do_predict" if split.startswith("test") else "--do_eval"
    raise UserError(
      f"A run must have left its scores to be one of an ensemble. Received: {directory} without "
      f"{os.path.basename(path)}. Let it make them: the same command with {command} instead of --do_train."
    )
  with np.load(io.BytesIO(files.read_bytes(path))) as stored:
    scores, found = stored["scores"], str(stored["examples"])
  if found != _digest(examples):
    raise UserError(
      f"All runs of an ensemble answer the same examples. Received: {path}, of other texts, labels or order. Let that "
      "run evaluate or predict these data, in an --output_dir of its own."
    )
  return np.asarray(scores)


def _digest(examples: Iterable[str]) -> str:
  total = hashlib.sha256()
  for example in examples:
    total.update(example.encode() + b"\0")
  return total.hexdigest()


def mean_probabilities(scores: Sequence[np.ndarray]) -> np.ndarray:
  r"""$\log \frac{1}{M} \sum_m \mathrm{softmax}(s_m)$ of scores `[n, C]` of M models, float64: scores again."""
  each = np.stack([special.log_softmax(np.asarray(one, np.float64), axis=-1) for one in scores])  # [M, n, C]
  return np.asarray(special.logsumexp(each, axis=0)) - np.log(len(scores))


def mean_logit(logits: Sequence[float]) -> float:
  r"""$\mathrm{logit}(\frac{1}{M} \sum_m \sigma(x_m))$, without rounding either probability to 1."""
  values = np.asarray(logits, np.float64)
  yes, no = special.logsumexp(special.log_expit(values)), special.logsumexp(special.log_expit(-values))
  return float(yes - no)
