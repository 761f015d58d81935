"""Windows of questions and paragraphs, with the positions of answers."""

from collections.abc import Iterator
import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.compat import on_coordinator
from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.keras_api.examples import Examples, blocks_of
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_inputs import Tensors, head
from albert_tf.tokenization.graph_offsets import GraphOffsets, Located
from albert_tf.windows.question_windows import pack_windows
from albert_tf.windows.text_windows import Windows, make_windows


class AnswerPositions(NamedTuple):
  """Where the answers are in W rows, int32 `[W]` each.

  Attributes:
    starts, ends: first and last position of the answer; 0, [CLS], where it is not in the window.
    is_absent: 1 where the window does not contain all of the answer.
  """

  starts: np.ndarray
  ends: np.ndarray
  is_absent: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class SquadFeatures:
  """The windows of a file, with the positions of tokens and answers.

  Attributes:
    data: the file, with Q questions.
    settings: sizes in tokens.
    paragraphs: int [Q] the paragraph of each question.
    located: the paragraphs as tokens, with the characters of each.
    windows: W windows as NumPy arrays, in the order of the questions; `row` is the question.
    rows: `[CLS] question [SEP] text [SEP]` of each window, with "p_mask" in 2.0.
    spans: int32 [Q, 2] first and last token of the first answer in the paragraph; -1 without one.
    missing: bool [Q] whether the answer is not in the paragraph where the file says.
  """

  data: SquadData
  settings: SquadSettings
  paragraphs: np.ndarray
  located: Located
  windows: Windows
  rows: Examples
  spans: np.ndarray
  missing: np.ndarray

  def __len__(self) -> int:
    return len(self.windows.row)

  @functools.cached_property
  def positions(self) -> AnswerPositions:
    """The answers' positions in the rows.

    A window of tokens 16 to 47 has them from position 14: token 20 is at 20 + 14 - 16 = 18.
    """
    windows = self.windows
    start, end = self.spans[windows.row].T  # In the paragraph, [W] each.
    is_inside = (start >= windows.begin) & (end < windows.begin + windows.length) & (start >= 0)
    shift = windows.text_begin - windows.begin
    return AnswerPositions(
      starts=np.where(is_inside, start + shift, 0).astype(np.int32),
      ends=np.where(is_inside, end + shift, 0).astype(np.int32),
      is_absent=(~is_inside).astype(np.int32),
    )


def make_features(
  data: SquadData, *, tokenizer: AlbertTokenizer, settings: SquadSettings
) -> SquadFeatures:
  """Converts a file to windows, with the ops of a SavedModel."""
  # Each paragraph once, however many questions it has.
  number_of_context: dict[str, int] = {}
  paragraphs = np.array(
    [
      number_of_context.setdefault(question.context, len(number_of_context))
      for question in data.questions
    ]
  )
  contexts = list(number_of_context)
  with on_coordinator():
    graph = GraphTokenizer(tokenizer)
    find_offsets = GraphOffsets(tokenizer, graph)

    blocks = blocks_of(len(contexts), desc="Paragraphs")
    located_blocks = [find_offsets(tf.constant(contexts[block])) for block in blocks]
    located = tf.nest.map_structure(lambda *blocks: tf.concat(blocks, axis=0), *located_blocks)

    # Questions, with the tokens of their paragraphs.
    query = graph.tokenize(tf.constant([question.text for question in data.questions]))
    query = head(query, settings.max_query_length)
    context = tf.gather(located.ids, paragraphs)

    windows, _ = make_windows(
      query.row_lengths() + 2,  # [CLS] query [SEP]
      context.row_lengths(),
      max_seq_length=settings.max_seq_length,
      doc_stride=settings.doc_stride,
    )

    def batches() -> Iterator[Tensors]:
      for block in blocks_of(len(windows.row), desc="Windows"):
        of_block = Windows(*[column[block] for column in windows])
        batch = pack_windows(graph, query, context, of_block)
        # The head of 1.1 does not read it.
        if data.version == "1.1":
          del batch["p_mask"]
        yield batch

    rows = Examples.of_blocks(batches())
  spans, missing = _align(data, paragraphs, located)
  return SquadFeatures(
    data=data,
    settings=settings,
    paragraphs=paragraphs,
    located=located,
    windows=Windows(*[column.numpy() for column in windows]),
    rows=rows,
    spans=spans,
    missing=missing,
  )


def _align(
  data: SquadData, paragraphs: np.ndarray, located: Located
) -> tuple[np.ndarray, np.ndarray]:
  """`spans` and `missing` of `SquadFeatures`.

  A span begins with the first token that ends after the answer's first character, and ends with the
  last one that begins before its end: all tokens of a character that became several belong to it; a
  lone "▁", which has no character, belongs to nothing.

      # characters   P a r i s   i s      The answer is "is": characters 6 to before 8.
      # tokens       0 0 0 1 1   2 2      They begin at 0, 3, 6 and end before 3, 5, 8.
      # first: the first end above 6 is of token 2; last: the last start up to 7 is of token 2.
  """
  row_splits = located.ids.row_splits.numpy()
  starts = located.starts.flat_values.numpy()
  stops = located.ends.flat_values.numpy()
  spans = np.full([len(data.questions), 2], -1, np.int32)
  missing = np.zeros(len(data.questions), bool)
  for index, question in enumerate(data.questions):
    for text, start in question.answers[:1]:
      # The file may be wrong about its answer.
      is_there = question.context.startswith(text, start)
      missing[index] = start < 0 or not text.strip() or not is_there
      begin, end = row_splits[paragraphs[index] : paragraphs[index] + 2]
      if missing[index] or begin == end:
        continue
      token_starts = starts[begin:end]
      token_stops = stops[begin:end]
      # A lone "▁" takes the end of the token before it, so that the ends rise.
      token_ends = np.maximum.accumulate(np.where(token_starts < token_stops, token_stops, 0))
      first = np.searchsorted(token_ends, start, side="right")
      first = min(first, end - begin - 1)
      last = np.searchsorted(token_starts, start + len(text) - 1, side="right") - 1
      spans[index] = first, max(first, last)
  return spans, missing
