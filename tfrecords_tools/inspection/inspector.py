"""What files of records really hold: instances as text, statistics, and everything that is wrong."""

from collections.abc import Iterator, Mapping
import os
from typing import Any, NamedTuple

from albert_tf.errors import UserError
from albert_tf.records import Manifest, PretrainingSpec, RecordFile, compact, read_records
from albert_tf.records import features as names
from albert_tf.records.decode import decode_example, decode_record
from albert_tf.records.shard_index import index_problem
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.inspection.measurements import Measurements, proportion_problems
from tfrecords_tools.inspection.validation import Validator, View, view_instance
from tfrecords_tools.pretraining.masking import prediction_budget
from tfrecords_tools.pretraining.shards import size_and_crc32c

_MOST_PROBLEMS = 20  # Described of each file; all are counted.


class Problem(NamedTuple):
  """Something wrong: with a record, or with the file where `record` is None."""

  path: str
  record: int | None
  what: str

  def __str__(self) -> str:
    where = self.path if self.record is None else f"{self.path}, record {self.record}"
    return f"{where}: {self.what}"


def render(view: View, tokenizer: Tokenizer) -> str:
  """The instance as text; an answer is {answer} where [MASK] is shown, {answer ✓} where kept, {shown → answer}."""
  answers = dict(zip(view.positions.tolist(), view.labels.tolist(), strict=True))
  words = []
  for position, piece_id in enumerate(view.ids.tolist()):
    piece = tokenizer.id_to_piece(piece_id)
    if position in answers:
      text = tokenizer.piece_text(tokenizer.id_to_piece(answers[position]))
      space, answer = text[: text.startswith(" ")], text.removeprefix(" ")
      if piece_id == answers[position]:
        answer += " ✓"
      elif piece_id != tokenizer.mask_id:
        answer = f"{tokenizer.piece_text(piece).removeprefix(' ')} → {answer}"
      words.append(f"{space}{{{answer}}}")
    elif piece_id in (tokenizer.cls_id, tokenizer.sep_id):
      words.append(f" {piece}\n" if piece_id == tokenizer.sep_id else piece)
    else:
      words.append(tokenizer.piece_text(piece))
  return "".join(words).strip("\n")


class Findings:
  """What was found in some files; its size does not depend on theirs.

  Attributes:
    measurements: of the sound instances.
    problems: the first of each file.
    num_problems: of all.
    settings: of the records of each directory, where a manifest tells them.
  """

  def __init__(self, tokenizer: Tokenizer):
    self.measurements = Measurements(tokenizer)
    self.problems: list[Problem] = []
    self.num_problems = 0
    self.settings: dict[str, Mapping[str, Any]] = {}

  def note(self, problem: Problem) -> None:
    self.num_problems += 1
    if len(self.problems) < _MOST_PROBLEMS:
      self.problems.append(problem)

  def add(self, other: "Findings") -> None:
    """Adds what was found in other files."""
    self.measurements.update(other.measurements)
    self.problems += other.problems
    self.num_problems += other.num_problems
    self.settings |= other.settings

  def check_proportions(self) -> None:
    """Notes shares over all files that their settings do not explain."""
    if not self.measurements.summary():
      return
    settings = list(self.settings.values())
    balanced = bool(settings) and all(
      each["sentence_pair"] == "sop" and each["compatibility"] == "none" for each in settings
    )
    found = proportion_problems(
      self.measurements.counts(),
      vocab_size=self.measurements.vocab_size,
      balanced_labels=balanced,
      masked=all(each["masked_lm_prob"] > 0 for each in settings),
    )
    self.problems += [Problem("all files", None, what) for what in found]
    self.num_problems += len(found)


class Inspector:
  """Goes through a file: measures, and notes what is wrong.

  Args:
    tokenizer: the vocabulary of the records.
    path: a file of records.
    max_records: read at most so many of them; then the file as a whole is not checked.
  """

  def __init__(self, tokenizer: Tokenizer, path: str, *, max_records: int | None = None):
    self._tokenizer = tokenizer
    self._path = path
    self._max_records = max_records
    self.findings = Findings(tokenizer)

  def inspect(self, *, validate: bool) -> Findings:
    """Reads the file to its end, or to the first record that cannot be read."""
    for _, view in self.views(validate=validate):
      self.findings.measurements.add(view)
    return self.findings

  def views(self, *, validate: bool = False) -> Iterator[tuple[int, View]]:
    """The sound instances with their places; notes what is wrong with the others, and with the file."""
    path, note = self._path, self.findings.note
    manifest = self._manifest()
    if validate and self._max_records is None:
      for problem in _file_problems(path, manifest):
        note(problem)
    validator = None
    index = -1
    try:
      for index, record in enumerate(read_records(path)):
        if self._max_records is not None and index >= self._max_records:
          return
        validator = validator or _make_validator(self._tokenizer, manifest, record)
        features = decode_record(record, validator.spec)
        if compact.word_bytes_of(record):
          validator.add_boundary(features)
        wrong = validator.problems(features)
        if not wrong:
          view = view_instance(features)
          yield index, view
          wrong = _budget_problem(view, manifest) if manifest else []
        for what in wrong:
          note(Problem(path, index, what))
    except UserError as error:
      note(Problem(path, None, str(error)))
    entry = _entry(manifest, path)
    if entry and self._max_records is None and index + 1 != entry.num_records:
      note(Problem(path, None, f"{index + 1} records could be read of {entry.num_records}"))

  def _manifest(self) -> Manifest | None:
    """That of the file's directory, which must be of the same vocabulary."""
    tokenizer = self._tokenizer
    manifest = Manifest.find(os.path.dirname(self._path))
    if manifest is not None:
      manifest.check(vocab_size=tokenizer.vocab_size, vocab_sha256=tokenizer.model_sha256, source=self._path)
      self.findings.settings[os.path.dirname(self._path)] = manifest.settings
    return manifest


def _entry(manifest: Manifest | None, path: str) -> RecordFile | None:
  """What the manifest says of a file; None where it says nothing."""
  listed = manifest.files if manifest else ()
  return next((file for file in listed if file.name == os.path.basename(path)), None)


def _file_problems(path: str, manifest: Manifest | None) -> Iterator[Problem]:
  """What is wrong with the file as a whole, compared with its index and its manifest."""
  try:
    if what := index_problem(path):
      yield Problem(path, None, what)
  except UserError:
    pass  # Reading the records says it.
  if manifest is None:
    return
  entry = _entry(manifest, path)
  if entry is None:
    yield Problem(path, None, "the manifest does not list it")
    return
  size, crc = size_and_crc32c(path)
  if size != entry.num_bytes:
    yield Problem(path, None, f"it has {size} bytes and not {entry.num_bytes}, as the manifest says")
  elif crc != entry.crc32c:
    yield Problem(path, None, f"its CRC32C is {crc} and not {entry.crc32c}, as the manifest says")


def _budget_problem(view: View, manifest: Manifest) -> list[str]:
  budget = prediction_budget(
    len(view.ids),
    masked_lm_prob=manifest.settings["masked_lm_prob"],
    max_predictions=manifest.max_predictions_per_seq,
  )
  count = len(view.positions)
  return [f"{count} pieces are masked and not {budget}"] if count > budget else []


def _make_validator(tokenizer: Tokenizer, manifest: Manifest | None, first: bytes) -> Validator:
  """Lengths and rules from the manifest; of records without one, lengths from the first record."""
  if manifest is not None:
    return Validator(
      tokenizer,
      spec=manifest.spec,
      whole_word=manifest.whole_word,
      sentence_pair=manifest.sentence_pair,
    )
  if compact.word_bytes_of(first):
    raise UserError(
      "Compact records do not tell their lengths. Received: no manifest.json beside them. Copy it there."
    )
  features = decode_example(first)
  lengths = [len(features.get(name, ())) for name in (names.INPUT_IDS, names.MASKED_LM_IDS)]
  return Validator(tokenizer, spec=PretrainingSpec(*lengths))
