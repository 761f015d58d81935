"""Answers as Python values: those of a model, and those that train a reader of questions.

`served_rows` calls the functions of a model's SavedModel, so that Python and a server agree.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import types
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api.examples import Examples
from albert_tf.serving.export import make_module
from albert_tf.serving.settings import ExportSettings
from albert_tf.settings import LARGEST_INT
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.tokenization.graph_offsets import GraphOffsets

# What a SavedModel answers to one text: output name → Python value.
Row = dict[str, Any]
# Contexts tokenized together by `answer_positions`, so that memory does not grow with the data.
_CONTEXTS_AT_ONCE = 256


class PredictedLabels(NamedTuple):
  """A text's labels: one, or those of a multi-label model; and the probability of every label."""

  labels: tuple[str, ...]
  probabilities: dict[str, float]


class Span(NamedTuple):
  """Characters `start` to `end` of a text, with a probability, and the tag or type of an entity."""

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
) -> Iterator[Row]:
  """What a model's SavedModel answers, row after row.

  Args:
    model: a `TextModel` with a preprocessor.
    columns: strings `[B]` by name of input.
    batch_size: number of rows computed together.
    **settings: fields of `ExportSettings`.
  """
  batch_size = whole_number(batch_size, "batch_size", minimum=1, maximum=LARGEST_INT)
  chosen = ExportSettings.of(**settings)
  task = model.task
  if task is not None:
    task = dataclasses.replace(task, pair="text_pair" in columns)

  # Tracing takes seconds, so a function is made again only when something else is asked of it.
  preprocessor = model.needed_preprocessor()
  key = (chosen, task, preprocessor, preprocessor.max_length)
  last = getattr(model, "_last_served", None)
  if last is None or last.key != key:
    module = make_module(model, chosen, task)
    # Keras does not track a namespace.
    last = types.SimpleNamespace(key=key, function=module.signatures()["serving_default"])
    model._last_served = last

  for batch in tf.data.Dataset.from_tensor_slices(columns).batch(batch_size):
    outputs = {name: _as_list(tensor.numpy()) for name, tensor in last.function(**batch).items()}
    for row in zip(*outputs.values(), strict=True):
      yield dict(zip(outputs, row, strict=True))


def _as_list(values: np.ndarray) -> Any:
  if values.dtype == object:
    values = np.vectorize(bytes.decode, otypes=[object])(values)
  return values.tolist()


def predicted_labels(row: Row) -> PredictedLabels:
  """Converts an answer of `ClassifierModule`."""
  probabilities = dict(zip(row["label_names"], row["probabilities"], strict=True))
  if "label" in row:
    return PredictedLabels((row["label"],), probabilities)
  labels = itertools.compress(row["label_names"], row["above_threshold"])
  return PredictedLabels(tuple(labels), probabilities)


def found_answer(row: Row) -> FoundAnswer:
  """Converts an answer of `QuestionAnsweringModule`."""
  spans = _spans(row, "answers", "starts", "ends", "probabilities")
  return FoundAnswer(row["answer"], spans, row["truncated"])


def tagged_text(row: Row) -> TaggedText:
  """Converts an answer of `TokenClassificationModule`."""
  words = _spans(row, "words", "starts", "ends", "probabilities", "tags")
  entities: list[Span] = []
  # Tags such as parts of speech make no entities.
  if "entities" in row:
    entities = _spans(
      row, "entities", "entity_starts", "entity_ends", "entity_probabilities", "entity_types"
    )
  return TaggedText(words, entities, row["truncated"])


def _spans(row: Row, *names: str) -> list[Span]:
  """Spans from the outputs that hold their fields, in the order of the fields."""
  spans = [Span(*fields) for fields in zip(*[row[name] for name in names], strict=True)]
  return [span for span in spans if span.end]  # Padding ends at 0.


class GoldAnswer(NamedTuple):
  """An answer to learn, "" for none, and its first character in the context; None: not known."""

  text: str
  start: int | None = None


def gold_answers(labels: Any) -> list[GoldAnswer] | None:
  """The answers to all questions; None for labels that are numbers, by name or in rows.

  Args:
    labels: for each question a string; or SQuAD's mapping with `text` and `answer_start`, whose
      values may be lists; or a list of these, of which the first counts. Or a mapping with a column
      of each.

  Raises:
    UserError: an answer has another form.

  Example: the answers of three questions, of which the last has none.
      ["sky", "grass", ""]
      [["sky", "the sky"], ["grass"], []]
      [{"text": ["sky", "the sky"], "answer_start": [4, 0]}, {"text": "grass"}, {"text": []}]
      {"text": ["sky", "grass", ""], "answer_start": [4, 6, 0]}
  """
  if isinstance(labels, Mapping) and "text" not in labels:
    return None
  if isinstance(labels, Mapping):
    texts = _column(labels["text"])
    starts = _column(labels.get("answer_start", [None] * len(texts)))
    if len(starts) != len(texts):
      raise UserError(
        f"Each answer has one start. Received: {len(texts)} in text, and {len(starts)} in "
        "answer_start. Give as many, or leave answer_start out."
      )
    rows = [
      {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
    ]
  else:
    rows = _column(labels)
    first = _plain(_first(rows, None))
    if isinstance(first, (list, tuple)) and isinstance(_first(first, None), (int, float)):
      return None
  return [_gold_answer(row, number) for number, row in enumerate(rows)]


def _column(values: Any) -> list[Any]:
  if isinstance(values, (str, bytes)) or not np.iterable(values):
    raise UserError(
      f"Each question has one answer. Received: {values!r:.60}, for all. Put it in a list."
    )
  return list(_plain(values))


def _gold_answer(row: Any, number: int) -> GoldAnswer:
  text = _first(row, "")
  start = None
  if isinstance(text, Mapping):
    start = _first(text.get("answer_start"), None)
    text = _first(text.get("text"), "")
  if isinstance(text, (str, bytes)) and isinstance(start, (int, types.NoneType)):
    return GoldAnswer(_text(text), start)
  raise UserError(
    "An answer is a string, or SQuAD's mapping with text and answer_start, or a list of these. "
    f'Received in row {number}: {row!r:.60}. Write "" where a context has no answer (SQuAD 2.0).'
  )


def _first(values: Any, of_none: Any) -> Any:
  """The first of several; a value that is no list stays."""
  values = _plain(values)
  if not isinstance(values, (list, tuple)):
    return values
  return values[0] if values else of_none


def _plain(values: Any) -> Any:
  """Arrays, tensors and columns of pandas as lists, in all axes; another value stays."""
  if hasattr(values, "dtype"):
    return np.asarray(values, dtype=object).tolist()
  return values


def answer_positions(
  examples: Examples,
  contexts: Any,
  answers: Sequence[GoldAnswer],
  tokenizer: AlbertTokenizer,
  *,
  may_lack: bool,
) -> np.ndarray:
  """First and last position of each answer, int32 `[2, B]`; 0, [CLS], for an empty answer.

  Args:
    examples: rows `[CLS] question [SEP] context [SEP]`.
    contexts: strings `[B]`.
    answers: one for each context; of one without a start the first occurrence counts.
    tokenizer: made the rows.
    may_lack: whether an answer may be empty.

  Raises:
    UserError: an answer is no part of its context, or is not in its row.

  Example: the answer "sky is" in "the sky is blue" is the characters 4 to 10.

      row         [CLS]  where  [SEP]  the  sky  is    blue   [SEP]
      characters                       0-3  4-7  8-10  11-15
      ends <= 4                        yes  no   no    no       the first token is 1
      starts < 10                      yes  yes  yes   no       the last token is 2
      positions                        3    4    5     6        the answer is 4 to 5
  """
  texts = list(map(_text, np.asarray(contexts, object)))
  if len(texts) != len(answers):
    raise UserError(
      f"Each question has one answer. Received: {len(texts)} contexts, "
      f"{len(answers)} answers. Give an empty answer where there is none (SQuAD 2.0)."
    )

  # Characters of the answers; -1 where the context does not hold it.
  begins = np.array(list(map(_begin, texts, answers)), np.int32)
  ends = begins + np.array([len(answer.text) for answer in answers], np.int32)

  # Tokens of the context: the first that ends after the answer's first character, and the last
  # that begins before its end.
  first = np.zeros_like(begins)
  last = np.zeros_like(begins)
  offsets = GraphOffsets(tokenizer, graph_tokenizer(tokenizer))
  for start in range(0, len(texts), _CONTEXTS_AT_ONCE):
    block = slice(start, start + _CONTEXTS_AT_ONCE)
    located = offsets(tf.constant(texts[block]))
    is_before = located.ends <= begins[block, np.newaxis]
    is_until_end = located.starts < ends[block, np.newaxis]
    first[block] = tf.reduce_sum(tf.cast(is_before, tf.int32), axis=1)
    last[block] = tf.reduce_sum(tf.cast(is_until_end, tf.int32), axis=1) - 1
  last = np.maximum(first, last)

  # A row may hold only the beginning of its context.
  segment_ids = tf.cast(examples.inputs["segment_ids"], tf.int32)
  context_lengths = tf.reduce_sum(segment_ids, axis=1).numpy()
  lengths = context_lengths - 1  # Without [SEP].
  is_empty = begins == ends
  is_wrong = np.where(is_empty, not may_lack, (begins < 0) | (last >= lengths))
  if is_wrong.any():
    row = int(is_wrong.argmax())
    raise UserError(
      "An answer is a part of its context, letter by letter, and in the first max_length tokens; "
      f"for SQuAD 2.0 it may be empty. Received in row {row}: {_shown(answers[row])}, for "
      f"{texts[row]!r:.60}. Correct the row, raise max_length, or train with run_squad.py, which "
      "reads long contexts in windows."
    )
  context_begins = (examples.lengths - context_lengths).astype(np.int32)
  return np.where(is_empty, 0, np.stack([first, last]) + context_begins)


def _begin(context: str, answer: GoldAnswer) -> int:
  """The first character of an answer; -1 where the context does not hold it."""
  if answer.start is None:
    return context.find(answer.text)
  if answer.start >= 0 and context.startswith(answer.text, answer.start):
    return answer.start
  return -1


def _shown(answer: GoldAnswer) -> str:
  if answer.start is None:
    return f"{answer.text!r:.60}"
  return f"{answer.text!r:.60} at character {answer.start}"


def _text(value: str | bytes) -> str:
  """A context or an answer as a string; raises `UserError` for bytes that are no UTF-8."""
  if isinstance(value, str):
    return value
  try:
    return value.decode()
  except UnicodeDecodeError as error:
    raise UserError(
      f"Contexts and answers must be UTF-8. Received: {value!r:.60}. Decode it by its own encoding."
    ) from error
