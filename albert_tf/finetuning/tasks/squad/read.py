"""Reads SQuAD files, versions 1.1 and 2.0, with or without answers."""

from typing import NamedTuple

from albert_tf import json_files
from albert_tf.errors import UserError
from albert_tf.finetuning.data import hold_out
from albert_tf.finetuning.tasks.squad.settings import SquadFiles


class Answer(NamedTuple):
  """A gold answer, and the character at which it begins by the file."""

  text: str
  start: int


class Question(NamedTuple):
  """A question about a paragraph, the context; `answers` is empty where it has none."""

  id: str
  text: str
  context: str
  article: int = 0  # The number of its article in the file.
  answers: tuple[Answer, ...] = ()


class SquadData(NamedTuple):
  """The questions of a file, in order; `labelled`: whether the file has answers."""

  version: str  # "1.1" or "2.0", as asked for.
  questions: list[Question]
  labelled: bool
  source: str = ""  # The file.


def read_splits(source: SquadFiles) -> dict[str, SquadData]:
  """Reads the questions of "train", of "eval", which choose checkpoint and threshold, and of "test"."""
  data: dict[str, SquadData] = {}
  if source.train_file:
    data["train"] = read_squad(
      source.train_file, version=source.squad_version, require_answers=True
    )
  if source.train_file and source.selection_split == "train":
    # Whole articles are held out, so that no paragraph is in both.
    full = data["train"]
    train, evaluation = hold_out(
      full.questions,
      source.eval_fraction,
      source=source.train_file,
      groups=[question.article for question in full.questions],
    )
    data["train"] = full._replace(questions=train)
    data["eval"] = full._replace(questions=evaluation)
  if source.predict_file:
    predict = read_squad(source.predict_file, version=source.squad_version)
    # Without other questions that choose, these do, if they can be scored.
    if predict.labelled and "eval" not in data:
      data["eval"] = predict
    else:
      data["test"] = predict
  return data


def read_squad(path: str, *, version: str, require_answers: bool = False) -> SquadData:
  """Reads a SQuAD JSON file.

  Args:
    path: the file.
    version: "1.1" (every question has an answer) or "2.0" (some have none: `is_impossible`, or an
      empty list of answers in a file in which other questions have answers).
    require_answers: whether a file without answers is an error, as for training.

  Raises:
    UserError: wrong layout, repeated ids, impossible questions in 1.1, or answers for only some
      questions.
  """
  document = json_files.read(path)
  questions = []
  contradictory = []  # Neither an answer nor said to have none, or both.
  labelled = False
  try:
    for article_number, article in enumerate(document["data"]):
      for paragraph in article["paragraphs"]:
        for item in paragraph["qas"]:
          answers = tuple(
            Answer(answer["text"], int(answer["answer_start"]))
            for answer in item.get("answers") or ()
          )
          questions.append(
            Question(
              str(item["id"]), item["question"], paragraph["context"], article_number, answers
            )
          )
          has_answer = bool(answers)
          if has_answer or item.get("is_impossible") is True:
            labelled = True
          # Some files of 2.0 say with an empty list that there is no answer.
          is_impossible = item.get("is_impossible", item.get("answers") == [])
          if has_answer == (version == "2.0" and bool(is_impossible)):
            contradictory.append(item["id"])
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      f"{path} must have SQuAD's layout: data, paragraphs, context, qas with id, question and "
      f"answers. Received: {type(error).__name__} ({error}), after {len(questions)} questions."
    ) from error

  # Where lists are empty everywhere, the answers were taken out: all are contradictory, and none is
  # wrong.
  if not questions or (contradictory and labelled) or (require_answers and not labelled):
    raise UserError(
      "All questions of a file have answers, or are said to have none in 2.0, or no question has; "
      f"those of a training file have. Received: {path} for --version={version}, "
      f"{len(questions)} questions, not so {contradictory[:3]}."
    )
  if len({question.id for question in questions}) < len(questions):
    raise UserError(
      f"Each question has an id of its own. Received: an id more than once in {path}."
    )
  return SquadData(version, questions, labelled, path)
