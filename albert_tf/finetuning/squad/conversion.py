"""Paragraphs and questions to pieces, one task a paragraph with its questions, over processes without TensorFlow."""

from collections.abc import Iterator, Sequence
import concurrent.futures
import concurrent.futures.process
import itertools
import multiprocessing
import os
import signal
import threading
from typing import Any, NamedTuple

import numpy as np

from albert_tf.errors import UserError
from albert_tf.finetuning.squad.alignment import align_paragraph
from albert_tf.finetuning.squad.reading import Answer, SquadData
from albert_tf.tokenization import AlbertTokenizer

NOWHERE = (-1, -1)
_CHUNK = 32  # Paragraphs a message between processes.
_worker: dict[str, Any] = {}


class ConvertedParagraph(NamedTuple):
  """Pieces of a paragraph, and the first and last (inclusive) original character of each; int32 `[P]`."""

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
  context: str
  questions: list[str]
  answers: list[Answer | None]


class _Done(NamedTuple):
  paragraph: ConvertedParagraph
  questions: list[ConvertedQuestion]


def locate(context: str, answer: Answer) -> tuple[int, str]:
  """Where the answer's text begins in the paragraph: as stated, or its nearest occurrence; -1 if nowhere."""
  text, stated = answer
  if not text.strip():
    return -1, "missing"
  if stated >= 0 and context.startswith(text, stated):
    return stated, "found"
  found = -1
  at = context.find(text)
  while at >= 0:
    if found < 0 or abs(at - stated) < abs(found - stated):
      found = at
    at = context.find(text, at + 1)
  return found, "moved" if found >= 0 else "missing"


def _convert_paragraph(job: _Job, tokenizer: AlbertTokenizer, max_query_length: int) -> _Done:
  aligned = align_paragraph(job.context, tokenizer)
  questions: list[ConvertedQuestion] = []
  for ids, answer in zip(tokenizer.encode_batch(job.questions), job.answers, strict=True):
    span, status = NOWHERE, "none"
    if answer is not None:
      start, status = locate(job.context, answer)
      if start >= 0 and len(aligned.ids):
        first = int(aligned.start_pieces[start])
        last = int(aligned.end_pieces[start + len(answer.text) - 1])
        span = (first, max(first, last))
    questions.append(ConvertedQuestion(np.array(ids[:max_query_length], np.int32), span, status))
  return _Done(ConvertedParagraph(aligned.ids, aligned.starts, aligned.ends), questions)


def convert(
  data: SquadData, *, tokenizer: AlbertTokenizer, max_query_length: int, num_workers: int = 1
) -> tuple[list[ConvertedParagraph], list[ConvertedQuestion]]:
  """Converts every paragraph once, and every question.

  Args:
    data: of `read_squad`.
    tokenizer: of the model.
    max_query_length: pieces a question is cut to.
    num_workers: processes; with 1 it is done here.

  Returns:
    In the order of `data`.
  """
  jobs = [_Job(paragraph.context, [], []) for paragraph in data.paragraphs]
  for question in data.questions:
    jobs[question.paragraph].questions.append(question.text)
    jobs[question.paragraph].answers.append(question.answers[0] if question.answers else None)
  chunks = [jobs[begin : begin + _CHUNK] for begin in range(0, len(jobs), _CHUNK)]
  num_workers = min(num_workers, len(chunks))
  if num_workers <= 1:
    done = [_convert_paragraph(job, tokenizer, max_query_length) for job in jobs]
  else:
    done = _in_processes(chunks, tokenizer, max_query_length, num_workers)
  waiting = [iter(each.questions) for each in done]
  return [each.paragraph for each in done], [next(waiting[question.paragraph]) for question in data.questions]


class _Packed(NamedTuple):
  """A chunk's results as few large arrays: thousands of small ones cost more to send than to make."""

  paragraphs: np.ndarray  # int32 [3, pieces]: ids, starts, ends, one paragraph after another.
  paragraph_lengths: np.ndarray
  questions: np.ndarray  # int32 [pieces]
  question_lengths: np.ndarray
  spans: np.ndarray  # int32 [questions, 2]
  statuses: list[str]


def _pack(chunk: Sequence[_Done]) -> _Packed:
  paragraphs = [np.stack(done.paragraph) for done in chunk]
  questions = [question for done in chunk for question in done.questions]
  nothing = np.empty(0, np.int32)
  return _Packed(
    np.concatenate(paragraphs, axis=1),
    np.array([paragraph.shape[1] for paragraph in paragraphs]),
    np.concatenate([nothing, *(question.ids for question in questions)]),
    np.array([len(question.ids) for question in questions], np.int64),
    np.array([question.span for question in questions], np.int32).reshape(-1, 2),
    [question.answer for question in questions],
  )


def _unpack(packed: _Packed, chunk: Sequence[_Job]) -> Iterator[_Done]:
  ends = np.cumsum(packed.question_lengths)
  begins = ends - packed.question_lengths
  questions = (
    ConvertedQuestion(packed.questions[begin:end], tuple(span), status)
    for begin, end, span, status in zip(
      begins.tolist(), ends.tolist(), packed.spans.tolist(), packed.statuses, strict=True
    )
  )
  at = 0
  for job, length in zip(chunk, packed.paragraph_lengths.tolist(), strict=True):
    columns = packed.paragraphs[:, at : at + length]
    at += length
    yield _Done(ConvertedParagraph(*columns), list(itertools.islice(questions, len(job.questions))))


def _in_processes(
  chunks: Sequence[list[_Job]], tokenizer: AlbertTokenizer, max_query_length: int, num_workers: int
) -> list[_Done]:
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload([__name__])
  with concurrent.futures.ProcessPoolExecutor(
    num_workers, mp_context=context, initializer=_start_worker, initargs=(tokenizer, max_query_length)
  ) as pool:
    try:
      results = zip(pool.map(_convert_in_worker, chunks), chunks, strict=True)
      return [done for packed, chunk in results for done in _unpack(packed, chunk)]
    except concurrent.futures.process.BrokenProcessPool as error:
      raise UserError(
        "Every worker must live to the end. Received: one was killed from outside, most often for want of memory. "
        "Give the same command again with a smaller --num_workers."
      ) from error


def _start_worker(tokenizer: AlbertTokenizer, max_query_length: int) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent reports an interruption, once.
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  _worker["settings"] = tokenizer, max_query_length


def _exit_with_parent() -> None:
  """A killed command cannot stop its workers; they would wait for tasks forever."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)


def _convert_in_worker(chunk: list[_Job]) -> _Packed:
  tokenizer, max_query_length = _worker["settings"]
  return _pack([_convert_paragraph(job, tokenizer, max_query_length) for job in chunk])
