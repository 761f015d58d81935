"""A model's answers as Python values, computed by the functions of its SavedModel."""

from collections.abc import Iterator, Mapping
import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.serving.export import make_module
from albert_tf.serving.settings import ExportSettings
from albert_tf.serving.signatures.base import Parts


class PredictedLabels(NamedTuple):
  """A text's labels: one, or those of a multi-label model; and the probability of every label."""

  labels: tuple[str, ...]
  probabilities: dict[str, float]


class Span(NamedTuple):
  """Characters `start` to `end` of a text, with a probability, and the tag or the type of an entity."""

  text: str
  start: int
  end: int
  probability: float
  label: str = ""


class FoundAnswer(NamedTuple):
  """An answer, "" if SQuAD 2.0's model finds none; the best spans; whether text was left unread."""

  text: str
  spans: list[Span]
  truncated: bool


class TaggedText(NamedTuple):
  """Words with their tags; entities, if the tags are of entities; whether text was left unread."""

  words: list[Span]
  entities: list[Span]
  truncated: bool


def served_rows(
  model: Any, columns: Mapping[str, Any], *, batch_size: int, **settings: Any
) -> Iterator[dict[str, Any]]:
  """What a model's SavedModel answers, row after row: output name → Python value.

  Args:
    model: a `TextModel` with a preprocessor.
    columns: strings `[B]` by name of input.
    batch_size: number of rows computed together.
    **settings: fields of `ExportSettings`.
  """
  module = served_module(model, is_pair="text_pair" in columns, **settings)
  function = module.signatures()["serving_default"]
  number = len(next(iter(columns.values())))
  for start in range(0, number, batch_size):
    batch = {name: tf.constant(rows[start : start + batch_size]) for name, rows in columns.items()}
    outputs = {name: _as_lists(tensor.numpy()) for name, tensor in function(**batch).items()}
    for row in range(min(batch_size, number - start)):
      yield {name: values[row] for name, values in outputs.items()}


def served_module(model: Any, *, is_pair: bool = False, **settings: Any) -> Any:
  """The module of a model's SavedModel; made again when settings, task or preprocessor are others."""
  chosen = ExportSettings(**{"max_seq_length": model.preprocessor.max_length, **settings})
  task = getattr(model, "task", None)
  if task is not None:
    task = dataclasses.replace(task, pair=is_pair)
  key = (chosen, task, model.preprocessor)
  last = getattr(model, "_last_served", None)
  if last is None or last.key != key:
    module = make_module(Parts(model=model, task=task, settings=chosen))
    last = types.SimpleNamespace(key=key, module=module)  # Keras does not track a namespace.
    model._last_served = last
  return last.module


def _as_lists(values: np.ndarray) -> Any:
  if values.dtype == object:
    values = np.vectorize(bytes.decode, otypes=[object])(values)
  return values.tolist()


def predicted_labels(row: Mapping[str, Any]) -> PredictedLabels:
  """Converts an answer of `ClassifierModule`."""
  names = row["label_names"]
  if "label" in row:
    labels = [row["label"]]
  else:
    labels = [name for name, above in zip(names, row["above_threshold"], strict=True) if above]
  return PredictedLabels(tuple(labels), dict(zip(names, row["probabilities"], strict=True)))


def found_answer(row: Mapping[str, Any]) -> FoundAnswer:
  """Converts an answer of `QuestionAnsweringModule`."""
  spans = _spans(row, "answers", "starts", "ends", "probabilities")
  return FoundAnswer(row["answer"], spans, row["truncated"])


def tagged_text(row: Mapping[str, Any]) -> TaggedText:
  """Converts an answer of `TokenClassificationModule`."""
  words = _spans(row, "words", "starts", "ends", "probabilities", "tags")
  fields = ("entities", "entity_starts", "entity_ends", "entity_probabilities", "entity_types")
  return TaggedText(words, _spans(row, *fields), row["truncated"])


def _spans(row: Mapping[str, Any], *names: str) -> list[Span]:
  """Spans from the outputs with the names of their fields; padding has the end 0."""
  if names[0] not in row:
    return []
  columns = zip(*(row[name] for name in names), strict=True)
  return [span for span in (Span(*values) for values in columns) if span.end]
