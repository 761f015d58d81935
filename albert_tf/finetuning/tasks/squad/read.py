"""SQuAD files: reading of versions 1.1 and 2.0, with or without answers."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from albert_tf.errors import UserError
from albert_tf.finetuning.data import parse_json, read_text


class Answer(NamedTuple):
  """A gold answer: its text as written in the file, and where the file says it begins."""

  text: str
  start: int


class Question(NamedTuple):
  """One question.

  Attributes:
    id: unique in its file.
    text: may be empty.
    paragraph: index into `SquadData.paragraphs`.
    answers: gold answers; empty where there is none, or where the file does not tell.
    is_impossible: 2.0: the paragraph does not answer it.
  """

  id: str
  text: str
  paragraph: int
  answers: tuple[Answer, ...] = ()
  is_impossible: bool = False


class Paragraph(NamedTuple):
  """A context, and the article (by number) it belongs to."""

  context: str
  article: int


class SquadData(NamedTuple):
  """A file's content.

  Attributes:
    version: "1.1" or "2.0", as asked for.
    paragraphs, questions: in the file's order.
    labelled: whether the questions have their answers, so that they can be scored or trained on.
  """

  version: str
  paragraphs: list[Paragraph]
  questions: list[Question]
  labelled: bool

  def subset(self, chosen: Iterable[int]) -> "SquadData":
    """The questions at the given places, and their paragraphs."""
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
    version: "1.1" (every question has an answer in its paragraph, whatever the file calls itself) or "2.0" (some
      have none: `is_impossible`, or without it an empty list of answers in a file where others have some).
    require_answers: refuse a file without answers, as training must.

  Raises:
    UserError: not JSON, not SQuAD's layout, or what would give wrong scores or teach wrong answers without a word: of
      the other version, ids twice, or answers for some questions only.

  Example:
    >>> read_squad("train-v2.0.json", version="2.0", require_answers=True).questions[0].text
  """
  document = parse_json(read_text(path), where=path)
  paragraphs: list[Paragraph] = []
  questions: list[Question] = []
  says_answers = False  # Whether a question has an answer, or is said to have none.
  try:
    stated = str(document.get("version", "")).lower().removeprefix("v")
    for number, article in enumerate(document["data"]):
      for paragraph in article["paragraphs"]:
        paragraphs.append(Paragraph(paragraph["context"], number))
        for item in paragraph["qas"]:
          questions.append(_question(item, len(paragraphs) - 1, version))
          says_answers |= bool(questions[-1].answers) or "is_impossible" in item
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      f"{path} must have SQuAD's layout: data, paragraphs, context, qas with id, question and answers. Received: "
      f"{type(error).__name__} ({error}), after {len(questions)} questions."
    ) from error
  if not says_answers:  # Empty lists everywhere: the answers were taken out.
    questions = [question._replace(is_impossible=False) for question in questions]
  lacking = [question.id for question in questions if not (question.answers or question.is_impossible)]
  if len({question.id for question in questions}) < len(questions):
    raise UserError(f"Each question has an id of its own. Received: an id more than once in {path}.")
  impossible = sum(question.is_impossible for question in questions)
  # The other way round the questions decide.
  if (version == "2.0" and stated.startswith("1")) or (version == "1.1" and impossible):
    raise UserError(
      f"The file's version must be the one asked for. Received: --version={version} and {path}, of version "
      f"{stated or 'unknown'} with {impossible} impossible questions."
    )
  if not questions or (lacking and (require_answers or len(lacking) < len(questions))):
    raise UserError(
      "All questions of a file have answers, or none has; those of a training file have. Received: "
      f"{len(lacking)} of {len(questions)} without in {path}{f', such as {lacking[0]}' if lacking else ''}."
    )
  return SquadData(version, paragraphs, questions, labelled=not lacking)


def _question(item: Any, paragraph: int, version: str) -> Question:
  answers = tuple(Answer(answer["text"], int(answer["answer_start"])) for answer in item.get("answers") or ())
  empty_means_none = version == "2.0" and item.get("answers") == []
  impossible = item.get("is_impossible", empty_means_none)
  if not isinstance(impossible, bool):  # The text "false" would count as true.
    raise TypeError(f"is_impossible is true or false, not {impossible!r}")
  if impossible and answers:
    raise ValueError(f"the question {item['id']!r} is impossible and has answers")
  return Question(str(item["id"]), item["question"], paragraph, answers, bool(impossible))
