"""Paragraphs and questions as pieces: each paragraph is tokenized once, with its questions, over several processes.

The tokenizer's offsets say which characters a piece stands for, here as in the served graph
(`tokenization.graph_offsets`). TensorFlow is not imported here, so that processes start fast.
"""

from collections.abc import Iterator, Sequence
import concurrent.futures
import concurrent.futures.process
import functools
import multiprocessing
import os
import signal
import threading
from typing import Any, NamedTuple

import numpy as np

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.read import Answer, SquadData
from albert_tf.progress import track
from albert_tf.tokenization import AlbertTokenizer

NOWHERE = (-1, -1)
_CHUNK = 32  # Paragraphs a message between processes.
_worker: dict[str, Any] = {}


class ConvertedParagraph(NamedTuple):
  """Pieces of a paragraph: ids, and the half-open range of characters that each stands for; int32 `[P]`.

  A lone "▁", which has no character, begins where the next piece does and ends where the one before did.
  """

  ids: np.ndarray
  starts: np.ndarray
  ends: np.ndarray


class ConvertedQuestion(NamedTuple):
  """A question.

  Attributes:
    ids: int32 `[Q]`, cut to the longest allowed.
    span: first and last piece of the first answer in the paragraph; `NOWHERE` without an answer.
    answer: "found"; "moved", where the text is elsewhere in the paragraph than stated; "missing", where it is not
      in the paragraph; "none", where no answer is given.
  """

  ids: np.ndarray
  span: tuple[int, int]
  answer: str


class _Job(NamedTuple):
  """A paragraph, and its questions with the first answer of each."""

  context: str
  questions: list[str]
  answers: list[Answer | None]


# Of a job: ids, starts and ends of the paragraph; ids, span and status of each question. Lists are sent between
# processes faster than thousands of small arrays.
_Done = tuple[list[int], list[int], list[int], list[tuple[list[int], tuple[int, int], str]]]


def locate(context: str, answer: Answer) -> tuple[int, str]:
  """Where the answer's text begins in the paragraph: as stated, or its nearest occurrence; -1 if nowhere."""
  text, stated = answer
  if not text.strip():
    return -1, "missing"
  if stated >= 0 and context.startswith(text, stated):
    return stated, "found"
  places = []
  at = context.find(text)
  while at >= 0:
    places.append(at)
    at = context.find(text, at + 1)
  return (min(places, key=lambda place: abs(place - stated)), "moved") if places else (-1, "missing")


def answer_span(
  starts: Sequence[int] | np.ndarray, ends: Sequence[int] | np.ndarray, begin: int, end: int
) -> tuple[int, int]:
  """First and last piece of the characters from `begin` to `end` (half-open), of pieces with these ranges.

  The first piece that ends behind the first character, and the last one that begins before the end: of a character
  that became several pieces all belong to it; a lone "▁", which has no character, belongs to nothing.
  """
  first = min(int(np.searchsorted(ends, begin, side="right")), len(ends) - 1)
  return first, max(first, int(np.searchsorted(starts, end - 1, side="right")) - 1)


def _convert_paragraph(job: _Job, tokenizer: AlbertTokenizer, max_query_length: int) -> _Done:
  ids, ranges = tokenizer.encode_with_offsets(job.context)
  starts, ends = np.array(ranges, np.int32).reshape(-1, 2).T
  ends = np.maximum.accumulate(np.where(starts < ends, ends, 0))
  questions = []
  for query, answer in zip(tokenizer.encode_batch(job.questions), job.answers, strict=True):
    span, status = NOWHERE, "none"
    if answer is not None:
      begin, status = locate(job.context, answer)
      if begin >= 0 and ids:
        span = answer_span(starts, ends, begin, begin + len(answer.text))
    questions.append((query[:max_query_length], span, status))
  return ids, starts.tolist(), ends.tolist(), questions


def convert(
  data: SquadData, *, tokenizer: AlbertTokenizer, max_query_length: int, num_workers: int = 1
) -> tuple[list[ConvertedParagraph], list[ConvertedQuestion]]:
  """Converts every paragraph once, and every question; both in the order of `data`.

  Args:
    data: of `read_squad`.
    tokenizer: of the model.
    max_query_length: pieces a question is cut to.
    num_workers: processes; with 1 it is done here.
  """
  jobs = [_Job(paragraph.context, [], []) for paragraph in data.paragraphs]
  for question in data.questions:
    jobs[question.paragraph].questions.append(question.text)
    jobs[question.paragraph].answers.append(question.answers[0] if question.answers else None)
  chunks = [jobs[begin : begin + _CHUNK] for begin in range(0, len(jobs), _CHUNK)]
  num_workers = min(num_workers, len(chunks))
  if num_workers > 1:
    done = _in_processes(chunks, tokenizer, max_query_length, num_workers)
  else:
    done = (_convert_paragraph(job, tokenizer, max_query_length) for job in jobs)
  paragraphs, waiting = [], []
  for *columns, questions in track(done, len(jobs), desc="Tokenizing", unit="paragraphs"):
    paragraphs.append(ConvertedParagraph(*(np.array(column, np.int32) for column in columns)))
    waiting.append(iter(questions))
  found = [next(waiting[question.paragraph]) for question in data.questions]
  return paragraphs, [ConvertedQuestion(np.array(ids, np.int32), span, status) for ids, span, status in found]


def _in_processes(
  chunks: Sequence[list[_Job]], tokenizer: AlbertTokenizer, max_query_length: int, num_workers: int
) -> Iterator[_Done]:
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload([__name__])
  with concurrent.futures.ProcessPoolExecutor(
    num_workers, mp_context=context, initializer=_start_worker, initargs=(tokenizer, max_query_length)
  ) as pool:
    try:
      for chunk in pool.map(_convert_in_worker, chunks):
        yield from chunk
    except concurrent.futures.process.BrokenProcessPool as error:
      raise UserError(
        "Every worker must live to the end. Received: one was killed from outside, most often for want of memory. "
        "Give the same command again with a smaller --num_workers."
      ) from error


def _start_worker(tokenizer: AlbertTokenizer, max_query_length: int) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  _worker["convert"] = functools.partial(
    _convert_paragraph, tokenizer=tokenizer, max_query_length=max_query_length
  )


def _exit_with_parent() -> None:
  """A killed command cannot stop its workers; they would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _convert_in_worker(chunk: list[_Job]) -> list[_Done]:
  return [_worker["convert"](job) for job in chunk]
