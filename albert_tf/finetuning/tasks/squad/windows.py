"""How questions become windows over their paragraph.

TensorFlow is not imported here, so that worker processes start fast.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.pieces import ConvertedParagraph, ConvertedQuestion, convert
from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.tokenization import AlbertTokenizer

_ROWS_KEPT = 1024  # Recently built rows; a batch asks for each of its rows once a feature.
_SPECIAL_PIECES = 3  # [CLS] query [SEP] text [SEP]
_MOST_BEAMS = 32  # Batches are padded to multiples of this.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadSettings:
  """Sizes, in pieces, under the original's flag names.

  Attributes:
    max_seq_length: S, of a window with its question.
    max_query_length: a question is cut to this.
    doc_stride: distance of two windows' beginnings.
    max_answer_length: of an answer.
    n_best_size: answers kept a question; in 1.1 also the starts and ends tried in a window.
    start_n_top, end_n_top: 2.0: starts followed in a window, and ends for each.
    keep_empty_windows: train on windows that lack their question's answer, at [CLS], as the original does in both
      versions: it teaches the model to score them low.
  """

  max_seq_length: int = 384
  max_query_length: int = 64
  doc_stride: int = 128
  max_answer_length: int = 30
  n_best_size: int = 20
  start_n_top: int = 5
  end_n_top: int = 5
  keep_empty_windows: bool = True

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type in (int, "int") and value < 1:
        raise UserError(f"{field.name} must be at least 1. Received: {value}.")
    if max(self.start_n_top, self.end_n_top) > _MOST_BEAMS:
      raise UserError(
        f"start_n_top and end_n_top must be at most {_MOST_BEAMS}: short windows have no more places. Received: "
        f"{self.start_n_top} and {self.end_n_top}."
      )
    if self.window(self.max_query_length) < 1:
      raise UserError(
        f"max_seq_length must be more than max_query_length + {_SPECIAL_PIECES}, so that text fits beside the "
        f"question. Received: {self.max_seq_length} and {self.max_query_length}. Use "
        f"--max_query_length={max(1, self.max_seq_length // 4)}, or longer rows where the model has them."
      )

  def window(self, query_length: int) -> int:
    """Pieces of text that fit beside a question of that many."""
    return self.max_seq_length - query_length - _SPECIAL_PIECES


class Windows(NamedTuple):
  """All windows, in the order of the questions.

  Attributes:
    question: int32 `[W]` which question.
    begin, length: int32 `[W]` the pieces of its paragraph.
  """

  question: np.ndarray
  begin: np.ndarray
  length: np.ndarray


class SquadFeatures:
  """The windows of a file and what is needed to build, label and read them.

  Attributes:
    data: what was read.
    settings: sizes.
    paragraphs: of `data.paragraphs`, converted.
    questions: of `data.questions`, converted.
    windows: all of them.
  """

  def __init__(
    self,
    data: SquadData,
    settings: SquadSettings,
    paragraphs: Sequence[ConvertedParagraph],
    questions: Sequence[ConvertedQuestion],
    *,
    cls_id: int,
    sep_id: int,
  ):
    self.data = data
    self.settings = settings
    self.paragraphs = paragraphs
    self.questions = questions
    self._cls_id, self._sep_id = cls_id, sep_id
    lengths = np.array([len(paragraph.ids) for paragraph in paragraphs], np.int32)
    self._text_lengths = lengths[[question.paragraph for question in data.questions]]
    self.windows = make_windows(
      text_lengths=self._text_lengths,
      query_lengths=np.array([len(question.ids) for question in questions], np.int32),
      settings=settings,
    )

  def __len__(self) -> int:
    return len(self.windows.question)

  @functools.cached_property
  def text_begins(self) -> np.ndarray:
    """int32 `[W]`: where in each window's row the text begins, after [CLS] query [SEP]."""
    query_lengths = np.array([len(question.ids) for question in self.questions], np.int32)
    return query_lengths[self.windows.question] + 2

  @functools.cached_property
  def positions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int32 `[W]` each: start and end of the answer in the row, 0 and 0 where it is not wholly in the window,
    and whether that is so."""
    windows, spans = self.windows, np.array([question.span for question in self.questions], np.int32)
    start, end = spans.reshape(-1, 2)[windows.question].T
    inside = (start >= windows.begin) & (end < windows.begin + windows.length) & (start >= 0)
    shift = self.text_begins - windows.begin
    starts, ends = (np.where(inside, position + shift, 0).astype(np.int32) for position in (start, end))
    return starts, ends, (~inside).astype(np.int32)

  @functools.cached_property
  def rows(self) -> "WindowRows":
    """The rows without padding, built when asked for."""
    return WindowRows(self)

  def build_row(self, index: int) -> dict[str, np.ndarray]:
    """`input_ids`, `input_mask`, `segment_ids` and, for 2.0, `p_mask`, int32 `[s]` each."""
    question, begin, length = (int(column[index]) for column in self.windows)
    query = self.questions[question].ids
    text = self.paragraphs[self.data.questions[question].paragraph].ids[begin : begin + length]
    first = len(query) + 2
    ids = np.empty(first + length + 1, np.int32)
    ids[0], ids[1 : first - 1], ids[first - 1] = self._cls_id, query, self._sep_id
    ids[first:-1], ids[-1] = text, self._sep_id
    segments = np.ones_like(ids)
    segments[:first] = 0
    row = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    if self.data.version == "2.0":
      p_mask = 1 - segments  # 1 where no answer can be; [CLS] stands for "no answer".
      p_mask[0], p_mask[-1] = 0, 1
      row["p_mask"] = p_mask
    return row

  @functools.cached_property
  def max_context(self) -> np.ndarray:
    """bool `[W, T]` by place in a window's text: whether the window is the one that shows the piece with most context.

    The first of equally good windows wins. An answer may begin there alone.
    """
    question, begin, length = self.windows
    chosen = np.zeros((len(self), max(int(length.max(initial=0)), 1)), bool)
    window, place = np.nonzero(np.arange(chosen.shape[1]) < length[:, np.newaxis])
    score = np.minimum(place, length[window] - 1 - place) + 0.01 * length[window]
    offsets = np.cumsum(self._text_lengths, dtype=np.int64) - self._text_lengths
    piece = offsets[question[window]] + begin[window] + place  # Of all questions' texts, one after another.
    best = np.zeros(int(self._text_lengths.sum()))
    np.maximum.at(best, piece, score)
    good = np.flatnonzero(score == best[piece])
    first = good[np.unique(piece[good], return_index=True)[1]]
    chosen[window[first], place[first]] = True
    return chosen


class WindowRows(Sequence[Mapping[str, np.ndarray]]):
  """Rows of `SquadFeatures`, built when asked for: a paragraph's pieces are in memory once."""

  def __init__(self, features: SquadFeatures):
    self._count = len(features)
    self._build = functools.lru_cache(_ROWS_KEPT)(features.build_row)

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, index):  # type: ignore[no-untyped-def]
    if isinstance(index, slice):
      return [self._build(i) for i in range(*index.indices(self._count))]
    return self._build(range(self._count)[index])


def make_windows(*, text_lengths: np.ndarray, query_lengths: np.ndarray, settings: SquadSettings) -> Windows:
  """Windows of each question: a window begins `doc_stride` after the one before, until the text ends.

  Args:
    text_lengths, query_lengths: `[questions]` pieces.
    settings: sizes.
  """
  room = settings.max_seq_length - query_lengths - 3
  step = np.minimum(room, settings.doc_stride)
  counts = 1 + np.maximum(0, -(-(text_lengths - room) // step))  # One also for an empty text.
  question = np.repeat(np.arange(len(counts)), counts)
  ordinal = np.arange(len(question)) - np.repeat(np.cumsum(counts) - counts, counts)
  begin = ordinal * step[question]
  length = np.minimum(text_lengths[question] - begin, room[question])
  return Windows(*(column.astype(np.int32) for column in (question, begin, length)))


def make_features(
  data: SquadData,
  *,
  tokenizer: AlbertTokenizer,
  settings: SquadSettings,
  num_workers: int = 1,
) -> SquadFeatures:
  """Converts a file.

  Args:
    data: of `read_squad`.
    tokenizer: of the model.
    settings: sizes.
    num_workers: processes; the result does not depend on it.

  Example:
    >>> data = read_squad("dev-v1.1.json", version="1.1")
    >>> features = make_features(data, tokenizer=tokenizer, settings=SquadSettings())
    >>> features.rows[0]["input_ids"]
  """
  paragraphs, questions = convert(
    data, tokenizer=tokenizer, max_query_length=settings.max_query_length, num_workers=num_workers
  )
  return SquadFeatures(
    data, settings, paragraphs, questions, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id
  )
