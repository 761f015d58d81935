"""Reads SQuAD files, versions 1.1 and 2.0, with or without answers."""

from collections.abc import Iterable
from typing import NamedTuple

from albert_tf import files
from albert_tf.errors import UserError


class Answer(NamedTuple):
  """A gold answer, and the character at which it begins by the file."""

  text: str
  start: int


class Question(NamedTuple):
  """One question; `paragraph` is the index of its paragraph. `answers` is empty if there are none in the file."""

  id: str
  text: str
  paragraph: int
  answers: tuple[Answer, ...] = ()


class Paragraph(NamedTuple):
  """A context, and the number of its article."""

  context: str
  article: int


class SquadData(NamedTuple):
  """Paragraphs and questions of a file, in order; `labelled`: whether the file has answers."""

  version: str  # "1.1" or "2.0", as asked for.
  paragraphs: list[Paragraph]
  questions: list[Question]
  labelled: bool

  def subset(self, chosen: Iterable[int]) -> "SquadData":
    """The questions with the given indices, and their paragraphs."""
    questions = [self.questions[index] for index in chosen]
    used = sorted({question.paragraph for question in questions})
    place = {old: new for new, old in enumerate(used)}
    return self._replace(
      paragraphs=[self.paragraphs[old] for old in used],
      questions=[question._replace(paragraph=place[question.paragraph]) for question in questions],
    )


def read_squad(path: str, *, version: str, require_answers: bool = False) -> SquadData:
  """Reads a SQuAD JSON file.

  Args:
    path: the file.
    version: "1.1" (every question has an answer) or "2.0" (some have none: `is_impossible`, or an empty list of
      answers in a file in which other questions have answers).
    require_answers: whether a file without answers is an error, as for training.

  Raises:
    UserError: wrong layout, repeated ids, impossible questions in 1.1, or answers for only some questions.
  """
  document = files.read_json(path)
  paragraphs: list[Paragraph] = []
  questions: list[Question] = []
  lacking: list[str] = []  # Neither an answer nor said to have none.
  labelled = False
  try:
    for number, article in enumerate(document["data"]):
      for paragraph in article["paragraphs"]:
        for item in paragraph["qas"]:
          given = item.get("answers") or ()
          answers = tuple(Answer(answer["text"], int(answer["answer_start"])) for answer in given)
          questions.append(Question(str(item["id"]), item["question"], len(paragraphs), answers))
          labelled |= bool(answers) or item.get("is_impossible") is True
          impossible = version == "2.0" and item.get("is_impossible", item.get("answers") == [])
          if bool(impossible) == bool(answers):
            lacking.append(item["id"])
        paragraphs.append(Paragraph(paragraph["context"], number))
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      f"{path} must have SQuAD's layout: data, paragraphs, context, qas with id, question and answers. Received: "
      f"{type(error).__name__} ({error}), after {len(questions)} questions."
    ) from error
  # Where lists are empty everywhere, the answers were taken out.
  if not questions or (lacking and labelled) or (require_answers and not labelled):
    raise UserError(
      "All questions of a file have answers, or are said to have none in 2.0, or no question has; those of a training "
      f"file have. Received: {path} for --version={version}, {len(questions)} questions, not so {lacking[:3]}."
    )
  if len({question.id for question in questions}) < len(questions):
    raise UserError(f"Each question has an id of its own. Received: an id more than once in {path}.")
  return SquadData(version, paragraphs, questions, labelled)
