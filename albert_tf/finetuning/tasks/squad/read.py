"""SQuAD files: strict reading of versions 1.1 and 2.0, with or without answers."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from albert_tf.errors import UserError
from albert_tf.finetuning.data import parse_json, read_text

VERSIONS = ("1.1", "2.0")
_LISTED = 5  # Places named in a message.


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

  def subset(self, keep: Iterable[int]) -> "SquadData":
    """The same paragraphs with only the questions at the given places."""
    return self._replace(questions=[self.questions[index] for index in keep])


def read_squad(path: str, *, version: str, require_answers: bool = False) -> SquadData:
  """Reads a SQuAD JSON file.

  Args:
    path: the file.
    version: "1.1" (every question has an answer in its paragraph, whatever the file calls itself) or "2.0" (some
      have none: `is_impossible`, or without it an empty list of answers in a file where others have some).
    require_answers: refuse a file without answers, as training must.

  Raises:
    UserError: not JSON, not SQuAD's layout (names the place), of the other version, ids twice, or answers
      for some questions only.

  Example:
    >>> read_squad("train-v2.0.json", version="2.0", require_answers=True).questions[0].text
  """
  document = parse_json(read_text(path), where=path)
  _check_version(document, version, path)
  reader = _Reader(version, path)
  for number, article in enumerate(reader.items(document, "data", "")):
    reader.read_article(number, article)
  if not reader.questions:
    raise UserError(f"A SQuAD file needs at least one question. Received: {path}, which has none.")
  return reader.finish(require_answers)


def _check_version(document: Any, version: str, path: str) -> None:
  if version not in VERSIONS:
    raise UserError(f"version must be one of {', '.join(VERSIONS)}. Received: {version!r}.")
  if not isinstance(document, dict):
    raise UserError(
      f'A SQuAD file is an object {{"version": …, "data": […]}}. Received: a {type(document).__name__} in {path}.'
    )
  stated = str(document.get("version", "")).lower().removeprefix("v")
  if version == "2.0" and stated[:1] == "1":  # The other way round the questions decide.
    raise UserError(
      f"The file's version must be the one asked for. Received: --version=2.0 and "
      f'"version": "{document["version"]}" in {path}. Use --version=1.1.'
    )


class _Reader:
  """Walks the document; every message names the place in it."""

  def __init__(self, version: str, path: str):
    self._version = version
    self._path = path
    self.paragraphs: list[Paragraph] = []
    self.questions: list[Question] = []
    self._places: dict[str, str] = {}  # Question id → where it was seen.
    self._without_answers: list[str] = []
    self._unanswerable: list[str] = []
    self._states_answers = False  # Whether a question has an answer, or is said to have none.

  def _refuse(self, rule: str, received: str, advice: str = "") -> UserError:
    return UserError(f"{rule} Received: {received} in {self._path}. {advice}".rstrip())

  def _get(self, item: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(item, Mapping) or key not in item:
      found = f"the keys {sorted(item)}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
      raise self._refuse(f'SQuAD needs "{key}" at {place or "the top"}.', found)
    value = item[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
      shown = {str: "a string", list: "a list", int: "an integer"}[kind]
      raise self._refuse(f'"{key}" at {place or "the top"} must be {shown}.', repr(value)[:60])
    return value

  def items(self, parent: Any, key: str, place: str) -> list[Any]:
    values: list[Any] = self._get(parent, key, list, place)
    return values

  def read_article(self, number: int, article: Any) -> None:
    place = f"data[{number}]"
    for p, paragraph in enumerate(self.items(article, "paragraphs", place)):
      here = f"{place}.paragraphs[{p}]"
      context = self._get(paragraph, "context", str, here)
      self.paragraphs.append(Paragraph(context, number))
      for q, question in enumerate(self.items(paragraph, "qas", here)):
        self._read_question(question, f"{here}.qas[{q}]")

  def _read_question(self, item: Any, place: str) -> None:
    key = item.get("id") if isinstance(item, Mapping) else None
    if isinstance(key, int) and not isinstance(key, bool):
      item = {**item, "id": str(key)}
    key = self._get(item, "id", str, place)
    if key in self._places:
      raise self._refuse("Each question has an id of its own.", f"{key!r} at {self._places[key]} and {place}")
    self._places[key] = place
    answers: list[Answer] = []
    if item.get("answers") is not None:
      for a, answer in enumerate(self.items(item, "answers", place)):
        here = f"{place}.answers[{a}]"
        answers.append(
          Answer(self._get(answer, "text", str, here), self._get(answer, "answer_start", int, here))
        )
    impossible = self._is_impossible(item, answers, place)
    self.questions.append(
      Question(
        key, self._get(item, "question", str, place), len(self.paragraphs) - 1, tuple(answers), impossible
      )
    )

  def _is_impossible(self, item: Mapping[str, Any], answers: list[Answer], place: str) -> bool:
    """Also notes which questions have no answers, and which are unanswerable by the file's own word."""
    impossible = item.get("is_impossible", False)
    if not isinstance(impossible, bool):
      raise self._refuse(f'"is_impossible" at {place} must be true or false.', repr(impossible)[:60])
    self._states_answers |= bool(answers) or "is_impossible" in item
    if impossible and answers:
      raise self._refuse("An impossible question has no answers.", f"{len(answers)} at {place}")
    if self._version == "2.0" and item.get("answers") == [] and "is_impossible" not in item:
      impossible = True
    if impossible:
      self._unanswerable.append(place)
    elif not answers:
      self._without_answers.append(place)
    return impossible

  def finish(self, require_answers: bool) -> SquadData:
    if not self._states_answers:  # Empty lists everywhere: the answers were taken out.
      self.questions = [question._replace(is_impossible=False) for question in self.questions]
      self._without_answers, self._unanswerable = list(self._places.values()), []
    if self._version == "1.1" and self._unanswerable:
      raise self._refuse(
        "SQuAD 1.1 has an answer for every question.",
        f"{len(self._unanswerable)} questions that are impossible (such as {self._unanswerable[0]})",
        "Use --version=2.0, or take those questions out.",
      )
    lacking = self._without_answers
    labelled = not lacking
    if lacking and (require_answers or len(lacking) < len(self.questions)):
      rule = (
        "Every question of a training file has its answer."
        if require_answers
        else "Either all questions of a file have answers, or none has."
      )
      raise self._refuse(
        rule,
        f"{len(lacking)} of {len(self.questions)} questions without one ({', '.join(lacking[:_LISTED])}"
        f"{', …' if len(lacking) > _LISTED else ''})",
      )
    return SquadData(self._version, self.paragraphs, self.questions, labelled)
