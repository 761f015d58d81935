"""The metrics of GLUE and of classification and regression in general, as GLUE defines them."""

from collections.abc import Callable
import warnings

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Share of equal entries."""
  return float(np.mean(labels == predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """F1 of class 1: MRPC's paraphrases, QQP's duplicates. 0 where neither is ever 1."""
  return float(sklearn_metrics.f1_score(labels, predictions, pos_label=1, average="binary", zero_division=0))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Mean of the F1 of every class that occurs in labels or predictions."""
  return float(sklearn_metrics.f1_score(labels, predictions, average="macro", zero_division=0))


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Matthews' correlation; 0 for a constant prediction."""
  return float(sklearn_metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Pearson's correlation; 0 where one side is constant."""
  return _correlation(stats.pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Spearman's rank correlation; 0 where one side is constant."""
  return _correlation(stats.spearmanr, labels, predictions)


def mean_squared_error(labels: np.ndarray, predictions: np.ndarray) -> float:
  return float(np.mean((np.asarray(labels, np.float64) - predictions) ** 2))


def _correlation(function: Callable[..., tuple[float, float]], a: np.ndarray, b: np.ndarray) -> float:
  if len(a) < 2:
    return 0.0
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Constant input: the value is then not a number.
    value = float(function(np.asarray(a, np.float64), np.asarray(b, np.float64))[0])
  return value if np.isfinite(value) else 0.0


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": accuracy,
  "f1": f1,
  "macro_f1": macro_f1,
  "matthews_correlation": matthews_correlation,
  "pearson": pearson,
  "spearman": spearman,
  "mean_squared_error": mean_squared_error,
}
