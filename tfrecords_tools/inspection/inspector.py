"""What files of records really hold: instances as text, statistics, and everything that is wrong."""

from collections.abc import Iterator, Sequence
import concurrent.futures
import functools
import multiprocessing
import os
from typing import NamedTuple

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.progress import track
from albert_tf.records import Manifest, PretrainingSpec, missing_files, read_records
from albert_tf.records import features as names
from albert_tf.records.example import decode_example
from albert_tf.records.shard_index import index_problem
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import Checksum
from tfrecords_tools.inspection.measurements import Measurements
from tfrecords_tools.inspection.validation import Validator, View, view_instance
from tfrecords_tools.pretraining.masking import prediction_budget

_MOST_PROBLEMS = 20  # Described of each file; all are counted.
_WORTH_A_WORKER = 64 << 20  # Bytes of records that take longer than its start.


class Problem(NamedTuple):
  """Something wrong: with a record, or with the file where `record` is None."""

  path: str
  record: int | None
  what: str

  def __str__(self) -> str:
    where = self.path if self.record is None else f"{self.path}, record {self.record}"
    return f"{where}: {self.what}"


class Findings:
  """What was found in some files; its size does not depend on theirs.

  Attributes:
    measurements: of the sound instances.
    problems: the first of each file.
    num_problems: of all.
  """

  def __init__(self, tokenizer: Tokenizer):
    self.measurements = Measurements(tokenizer)
    self.problems: list[Problem] = []
    self.num_problems = 0

  def report(self, problem: Problem) -> None:
    self.num_problems += 1
    if len(self.problems) < _MOST_PROBLEMS:
      self.problems.append(problem)

  def add(self, other: "Findings") -> None:
    """Adds what was found in other files."""
    self.measurements.update(other.measurements)
    self.problems += other.problems
    self.num_problems += other.num_problems


def inspect_files(
  paths: Sequence[str],
  tokenizer: Tokenizer,
  *,
  validate: bool,
  max_records: int | None = None,
  num_workers: int | None = None,
) -> Findings:
  """What is found in all files; it does not depend on the number of processes."""
  if num_workers is None:
    num_workers = min(os.cpu_count() or 1, sum(map(files.size, paths)) // _WORTH_A_WORKER)
  inspect = functools.partial(inspect_file, tokenizer=tokenizer, validate=validate, max_records=max_records)
  total = Findings(tokenizer)
  context = multiprocessing.get_context("forkserver")
  with concurrent.futures.ProcessPoolExecutor(
    max(1, min(num_workers, len(paths))), mp_context=context
  ) as pool:
    found_by_file = pool.map(inspect, paths) if num_workers > 1 else map(inspect, paths)
    for found in track(found_by_file, len(paths), desc="Inspecting", unit="files"):
      total.add(found)
  for directory in sorted(set(map(os.path.dirname, paths))) if validate else ():
    manifest = Manifest.find(directory)
    for name in missing_files(directory, manifest) if manifest else ():
      total.report(Problem(os.path.join(directory, name), None, "it is missing"))
  return total


def inspect_file(
  path: str, tokenizer: Tokenizer, *, validate: bool, max_records: int | None = None
) -> Findings:
  """Reads a file to its end, or to the first record that cannot be read; measures, and reports what is wrong."""
  findings = Findings(tokenizer)
  for _, view in views(path, tokenizer, findings, validate=validate, max_records=max_records):
    findings.measurements.add(view)
  return findings


def views(
  path: str,
  tokenizer: Tokenizer,
  findings: Findings,
  *,
  validate: bool = False,
  max_records: int | None = None,
) -> Iterator[tuple[int, View]]:
  """Yields the sound instances with their places; reports what is wrong with the others, and with the file.

  Args:
    path: a file of records.
    tokenizer: the vocabulary of the records.
    findings: where problems go.
    validate: compare the file with its manifest and its index, too.
    max_records: read at most so many of them; then the file as a whole is not checked.
  """
  manifest = Manifest.find(os.path.dirname(path))
  if manifest is not None:
    manifest.check(vocab_size=tokenizer.vocab_size, vocab_sha256=tokenizer.model_sha256, source=path)
  if validate and max_records is None:
    for what in _file_problems(path, manifest):
      findings.report(Problem(path, None, what))
  validator: Validator | None = None
  try:
    for index, record in enumerate(read_records(path)):
      if index == max_records:
        return
      features = decode_example(record)
      if validator is None:
        lengths = [len(features.get(name, ())) for name in (names.INPUT_IDS, names.MASKED_LM_IDS)]
        validator = _make_validator(tokenizer, manifest, lengths)
      wrong = validator.problems(features)
      if not wrong:
        view = view_instance(features)
        yield index, view
        wrong = _budget_problem(view, manifest) if manifest else []
      for what in wrong:
        findings.report(Problem(path, index, what))
  except UserError as error:
    findings.report(Problem(path, None, str(error)))


def _make_validator(tokenizer: Tokenizer, manifest: Manifest | None, lengths: Sequence[int]) -> Validator:
  """Lengths and rules from the manifest; of records without one, the lengths of the first record."""
  if manifest is None:
    return Validator(tokenizer, spec=PretrainingSpec(*lengths))
  return Validator(
    tokenizer, spec=manifest.spec, whole_word=manifest.whole_word, sentence_pair=manifest.sentence_pair
  )


def _file_problems(path: str, manifest: Manifest | None) -> Iterator[str]:
  """What is wrong with the file as a whole, compared with its index and its manifest."""
  try:
    if what := index_problem(path):
      yield what
  except UserError:
    pass  # Reading the records says it.
  if manifest is None:
    return
  entry = next((file for file in manifest.files if file.name == os.path.basename(path)), None)
  if entry is None:
    yield "the manifest does not list it"
    return
  checksum = Checksum()
  with files.open_binary(path) as stream:
    while checksum.add(stream.read(1 << 20)):
      pass
  if (checksum.num_bytes, checksum.crc32c) != (entry.num_bytes, entry.crc32c):
    yield (
      f"it has {checksum.num_bytes} bytes and the CRC32C {checksum.crc32c}, and not {entry.num_bytes} and "
      f"{entry.crc32c}, as the manifest says"
    )


def _budget_problem(view: View, manifest: Manifest) -> list[str]:
  budget = prediction_budget(
    len(view.ids),
    masked_lm_prob=manifest.settings["masked_lm_prob"],
    max_predictions=manifest.max_predictions_per_seq,
  )
  count = len(view.positions)
  return [f"{count} pieces are masked and not {budget}"] if count > budget else []


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
