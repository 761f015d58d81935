"""What the original SQuAD feature code does, restated plainly: the other side of squad_features.py.

One question at a time: its paragraph is tokenized and aligned anew, by a longest common subsequence that is filled
cell by cell and normalises a character for each; then windows, with every piece's best window searched over all of
them. It leaves out the original's log lines and its TFRecords.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.finetuning.tasks.squad.windows import SquadSettings
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.normalization import normalize_text


def convert(data: SquadData, tokenizer: AlbertTokenizer, settings: SquadSettings) -> Iterator[dict[str, Any]]:
  """The padded features of every window of every question, and the alignment of its pieces."""
  f = np.zeros((1000, 1000), np.float32)  # Kept between questions, as the original does.
  for question in data.questions:
    query = tokenizer.encode(question.text)[: settings.max_query_length]
    context = data.paragraphs[question.paragraph].context
    pieces = tokenizer.encode_pieces(context)
    if max(len(context), sum(map(len, pieces))) > len(f):
      f = np.zeros([max(len(context), sum(map(len, pieces))) + 100] * 2, np.float32)
    starts, ends = _align(context, pieces, tokenizer, f)
    ids = [tokenizer.piece_to_id(piece) for piece in pieces]
    yield from _windows(ids, starts, ends, query, tokenizer, settings)


def _align(
  context: str, pieces: list[str], tokenizer: AlbertTokenizer, f: np.ndarray
) -> tuple[list[int], list[int]]:
  """First and last original character of each piece."""
  text = "".join(pieces).replace("▁", " ")
  n, m = len(context), len(text)
  band = abs(n - m) + 5
  for _ in range(2):
    came = _fill(context, text, band, tokenizer.config.do_lower_case, f)
    if f[n - 1, m - 1] > 0.8 * n:
      break
    band *= 2
  partner: list[int | None] = [None] * m
  i, j = n - 1, m - 1
  while i >= 0 and j >= 0 and (i, j) in came:
    if came[i, j] == 2:
      partner[j] = i
      i, j = i - 1, j - 1
    elif came[i, j] == 1:
      j -= 1
    else:
      i -= 1
  starts, ends, at = [], [], 0
  for piece in pieces:
    starts.append(_resolve(partner, at, n, is_start=True))
    at += len(piece)
    ends.append(_resolve(partner, at - 1, n, is_start=False))
  return starts, ends


def _fill(
  context: str, text: str, band: int, do_lower_case: bool, f: np.ndarray
) -> dict[tuple[int, int], int]:
  f.fill(0)
  came: dict[tuple[int, int], int] = {}
  for i in range(len(context)):
    for j in range(max(0, i - band), min(len(text), i + band)):
      if i > 0:
        came[i, j] = 0
        f[i, j] = f[i - 1, j]
      if j > 0 and f[i, j - 1] > f[i, j]:
        came[i, j] = 1
        f[i, j] = f[i, j - 1]
      before = f[i - 1, j - 1] if i > 0 and j > 0 else 0
      char = normalize_text(context[i], do_lower_case=do_lower_case, remove_space=False)
      if char == text[j] and before + 1 > f[i, j]:
        came[i, j] = 2
        f[i, j] = before + 1
  return came


def _resolve(partner: list[int | None], place: int, limit: int, *, is_start: bool) -> int:
  found = partner[place]
  if found is not None:
    return found
  left = next((p for p in reversed(partner[:place]) if p is not None), -1)
  right = next((p for p in partner[place:] if p is not None), limit)
  if right > left + 1:
    return left + 1 if is_start else right - 1
  return min(right, limit - 1) if is_start else max(left, 0)


def _windows(
  ids: list[int],
  starts: list[int],
  ends: list[int],
  query: list[int],
  tokenizer: AlbertTokenizer,
  settings: SquadSettings,
) -> Iterator[dict[str, Any]]:
  spans, begin = [], 0
  while begin < len(ids):
    length = min(len(ids) - begin, settings.window(len(query)))
    spans.append((begin, length))
    if begin + length == len(ids):
      break
    begin += min(length, settings.doc_stride)
  for number, (begin, length) in enumerate(spans):
    first = len(query) + 2
    row = [tokenizer.cls_id, *query, tokenizer.sep_id, *ids[begin : begin + length], tokenizer.sep_id]
    segments = [0] * first + [1] * (length + 1)
    padding = [0] * (settings.max_seq_length - len(row))
    yield {
      "input_ids": row + padding,
      "input_mask": [1] * len(row) + padding,
      "segment_ids": segments + padding,
      "p_mask": [0] + [1] * (first - 1) + [0] * length + [1] * (1 + len(padding)),
      "starts": starts[begin : begin + length],
      "ends": ends[begin : begin + length],
      "max_context": [_best(spans, begin + place) == number for place in range(length)],
    }


def _best(spans: list[tuple[int, int]], place: int) -> int:
  """The window that shows this piece with most context."""
  best, found = -1.0, -1
  for number, (begin, length) in enumerate(spans):
    if begin <= place < begin + length:
      score = min(place - begin, begin + length - 1 - place) + 0.01 * length
      if score > best:
        best, found = score, number
  return found
