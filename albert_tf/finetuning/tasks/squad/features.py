"""Windows of questions and paragraphs, with the positions of answers."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.finetuning.tasks.rows import PackedRows, in_blocks
from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer, head
from albert_tf.tokenization.graph_offsets import GraphOffsets, Located
from albert_tf.windows.question_windows import pack_windows
from albert_tf.windows.text_windows import Windows, make_windows

_TEXTS_AT_ONCE = 256
_WINDOWS_AT_ONCE = 4096
_ROW = 1 << 32  # More than any paragraph has characters.


@dataclasses.dataclass(frozen=True, eq=False)
class SquadFeatures:
  """The windows of a file, with the positions of tokens and answers."""

  data: SquadData  # With Q questions.
  settings: SquadSettings
  located: Located  # The paragraphs as tokens, with the characters of each.
  windows: Windows  # W windows as NumPy arrays, in the order of the questions; `row` is the question.
  rows: PackedRows  # `[CLS] question [SEP] text [SEP]` of each window, with "p_mask" in 2.0.
  spans: np.ndarray  # int32 [Q, 2] first and last token of the first answer in the paragraph; -1 without one.
  missing: np.ndarray  # bool [Q] whether the answer is not in the paragraph where the file says.

  def __len__(self) -> int:
    return len(self.windows.row)

  @functools.cached_property
  def positions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start and end of the answer in each row, 0 and 0 if the window does not contain all of it, and whether that
    is so; int32 [W] each."""
    row, begin, length, text_begin = self.windows
    start, end = self.spans[row].T
    inside = (start >= begin) & (end < begin + length) & (start >= 0)
    shift = text_begin - begin
    starts, ends = (np.where(inside, position + shift, 0).astype(np.int32) for position in (start, end))
    return starts, ends, (~inside).astype(np.int32)


def make_features(data: SquadData, *, tokenizer: AlbertTokenizer, settings: SquadSettings) -> SquadFeatures:
  """Converts a file to windows, with the ops of a SavedModel."""
  contexts = [paragraph.context for paragraph in data.paragraphs]
  # The tables too: a slice's first host could not give them to this process.
  with tf.device(coordinator_cpu()):
    graph = GraphTokenizer(tokenizer)
    offsets = GraphOffsets(tokenizer, graph)
    parts = [offsets(tf.constant(block)) for block in in_blocks(contexts, _TEXTS_AT_ONCE, desc="Paragraphs")]
    located = Located(*(tf.concat(column, axis=0) for column in zip(*parts, strict=True)))
    query = graph.tokenize(tf.constant([question.text for question in data.questions]))
    query = head(query, tf.minimum(query.row_lengths(), settings.max_query_length))
    context = tf.gather(located.ids, [question.paragraph for question in data.questions])
    sizes = {"max_seq_length": settings.max_seq_length, "doc_stride": settings.doc_stride}
    windows, _ = make_windows(query.row_lengths() + 2, context.row_lengths(), **sizes)  # [CLS] query [SEP]
    blocks = in_blocks(range(len(windows.row)), _WINDOWS_AT_ONCE, desc="Windows")
    batches = (
      pack_windows(graph, query, context, Windows(*(column[block[0] : block[-1] + 1] for column in windows)))
      for block in blocks
    )
    rows = PackedRows.of(batches, p_mask=data.version == "2.0")
  columns = Windows(*(column.numpy() for column in windows))
  return SquadFeatures(data, settings, located, columns, rows, *_align(data, located))


def _align(data: SquadData, located: Located) -> tuple[np.ndarray, np.ndarray]:
  """`spans` and `missing` of `SquadFeatures`.

  A span begins with the first token that ends after the answer's first character, and ends with the last one that
  begins before its end: all tokens of a character that became several belong to it; a lone "▁", which has no
  character, belongs to nothing.
  """
  paragraphs = np.array([question.paragraph for question in data.questions])
  begins, ends = np.full((2, len(paragraphs)), -1, np.int64)
  missing = np.zeros(len(paragraphs), bool)
  for index, question in enumerate(data.questions):
    for text, start in question.answers[:1]:
      context = data.paragraphs[question.paragraph].context
      missing[index] = start < 0 or not text.strip() or not context.startswith(text, start)
      if not missing[index]:
        begins[index], ends[index] = start, start + len(text)
  # Paragraphs' tokens are concatenated, each in its own range, so that one search finds all.
  splits = located.ids.row_splits.numpy()
  base = np.repeat(np.arange(len(splits) - 1), np.diff(splits)) * _ROW
  piece_starts, piece_ends = located.starts.flat_values.numpy(), located.ends.flat_values.numpy()
  piece_ends = np.maximum.accumulate(base + np.where(piece_starts < piece_ends, piece_ends, 0))
  row, row_end = splits[paragraphs], splits[paragraphs + 1]
  first = np.searchsorted(piece_ends, paragraphs * _ROW + begins, side="right")
  first = np.minimum(first, row_end - 1)
  last = np.searchsorted(base + piece_starts, paragraphs * _ROW + ends - 1, side="right") - 1
  spans = np.stack([first, np.maximum(first, last)], axis=1) - row[:, np.newaxis]
  spans[(begins < 0) | (row == row_end)] = -1
  return spans.astype(np.int32), missing
