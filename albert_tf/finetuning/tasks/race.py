"""RACE: reading comprehension of English examinations, in the distributed and in the JSON-lines layout."""

from collections.abc import Iterator, Mapping, Sequence
import os
from typing import Any

from absl import logging

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.data import parse_json, read_lines, read_text
from albert_tf.finetuning.tasks.choices import LETTERS, ChoiceExample

LEVELS = ("middle", "high")
NUM_CHOICES = 4
_KEYS = ("article", "questions", "options")
_ALL = "all.txt"


def read_race(data_dir: str, split: str, *, levels: Sequence[str] = LEVELS) -> list[ChoiceExample]:
  """The questions of one split, each with its level as group.

  Both layouts of `{train,dev,test}/{middle,high}/` are read: one JSON object a file, as the data set is
  distributed, and `all.txt` with one JSON object a line, as the original ALBERT wants it. Where both are in a
  folder, `all.txt` alone counts.

  Args:
    data_dir: the folder `RACE`, or the one that holds it.
    split: train, dev or test.
    levels: middle, high or both.

  Returns:
    The questions in the order of the files' names.

  Raises:
    UserError: no files, or a passage without a needed key, with an answer outside A to D or with another number
      of options.

  Reference: Lai et al. 2017, arXiv 1704.04683.
  """
  examples: list[ChoiceExample] = []
  for level in levels:
    for where, text in _passages(_folder(data_dir, split, level)):
      examples.extend(_questions(_parse(text, where), where=where, level=level))
  if not examples:
    raise UserError(
      f"A split holds at least one question. Received: none in the {split} files of {data_dir}. "
      "Check that the archive was unpacked whole."
    )
  return examples


def _folder(data_dir: str, split: str, level: str) -> str:
  for root in (os.path.join(data_dir, "RACE"), data_dir):
    if files.exists(os.path.join(root, split, level)):
      return os.path.join(root, split, level)
  names = files.listdir(data_dir)
  there = f"; it holds {', '.join(names[:8]) or 'nothing'}" if files.isdir(data_dir) else ""
  raise UserError(
    "RACE lies in {train,dev,test}/{middle,high}/ of --data_dir or of its folder RACE. Received: "
    f"{data_dir} without {split}/{level}{there}. Unpack RACE.tar.gz there; if one level is all there is, give "
    "--middle_only or --high_only."
  )


def _passages(folder: str) -> Iterator[tuple[str, str]]:
  """Where it is, and the JSON text of each passage."""
  paths = [os.path.join(folder, name) for name in files.listdir(folder) if name.endswith(".txt")]
  if not paths:
    raise UserError(
      f"A folder of RACE must hold passages (*.txt). Received: {folder}, which holds none. Check that the archive "
      "was unpacked whole."
    )
  whole = [path for path in paths if os.path.basename(path) == _ALL]
  if whole and len(paths) > 1:
    logging.info("%s: %s is read, the %d other files are not.", folder, _ALL, len(paths) - 1)
  for path in whole or paths:
    found = False
    passages = enumerate(read_lines(path), 1) if whole else [(0, read_text(path))]
    for number, text in passages:
      if text.strip():
        found = True
        yield f"{path}:{number}" if number else path, text
    if not found:
      raise UserError(f"A file of RACE holds a JSON object. Received: {path}, which is empty.")


def _parse(text: str, where: str) -> Mapping[str, Any]:
  passage = parse_json(text, where=where)
  if not isinstance(passage, dict):
    raise UserError(f"A passage of RACE is one JSON object. Received: {where}, a {type(passage).__name__}.")
  missing = [key for key in _KEYS if key not in passage]
  if missing:
    raise UserError(
      f"A passage of RACE has the keys {', '.join(_KEYS)} and, where known, answers. Received: {where} "
      f"without {', '.join(missing)}; it has {', '.join(sorted(passage)) or 'none'}."
    )
  questions, options, answers = passage["questions"], passage["options"], passage.get("answers")
  if not isinstance(passage["article"], str) or not all(
    isinstance(part, list) for part in (questions, options)
  ):
    raise UserError(
      f"In RACE, article is a text, questions and options are lists. Received: others in {where}."
    )
  counts = [len(questions), len(options), *([len(answers)] if answers is not None else [])]
  if len(set(counts)) > 1:
    raise UserError(
      "A passage of RACE has as many options and answers as questions. Received: "
      f"{' / '.join(map(str, counts))} questions / options / answers in {where}."
    )
  return passage


def _questions(passage: Mapping[str, Any], *, where: str, level: str) -> Iterator[ChoiceExample]:
  name = str(passage.get("id") or os.path.basename(where))
  answers = passage.get("answers")
  for number, (question, options) in enumerate(zip(passage["questions"], passage["options"], strict=True)):
    place = f"question {number + 1} of {where}"
    if not isinstance(options, list) or len(options) != NUM_CHOICES:
      received = len(options) if isinstance(options, list) else repr(options)
      raise UserError(
        f"A question of RACE has {NUM_CHOICES} options. Received: {received} in {place}. "
        "For questions with another number of choices use --task_name=custom."
      )
    if not all(isinstance(text, str) for text in (question, *options)):
      raise UserError(f"Questions and options of RACE are texts. Received: others in {place}.")
    yield ChoiceExample(
      example_id=f"{name}:{number}",
      context=passage["article"],
      question=question,
      choices=tuple(options),
      label=None if answers is None else _label(answers[number], place),
      group=level,
    )


def _label(answer: Any, place: str) -> int:
  known = LETTERS[:NUM_CHOICES]
  if not isinstance(answer, str) or len(answer) != 1 or answer not in known:
    raise UserError(f"An answer of RACE is one of {', '.join(known)}. Received: {answer!r} in {place}.")
  return known.index(answer)
