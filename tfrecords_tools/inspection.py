"""What files of records really hold: instances as text, statistics, and everything that is wrong."""

import collections
from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import dataclasses
import functools
import math
import multiprocessing
import os
from typing import Any, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.progress import track
from albert_tf.records import Manifest, PretrainingSpec, missing_files, read_records
from albert_tf.records import features as names
from albert_tf.records.example import decode_example
from albert_tf.records.shard_index import index_problem
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import Checksum
from tfrecords_tools.pretraining.masking import prediction_budget
from tfrecords_tools.pretraining.statistics import KINDS

_MOST_PROBLEMS = 20  # Described of each file; all are counted.
_WORTH_A_WORKER = 64 << 20  # Bytes of records that take longer than its start.


@dataclasses.dataclass(frozen=True)
class View:
  """One instance, taken apart.

  Attributes:
    ids: int64 [T] the input, without padding.
    restored: int64 [T] the same with the original pieces at the masked positions.
    positions, labels: int64 [M] the predictions.
    segments, boundary: int64 [T].
    order_label: 0 or 1.
  """

  ids: np.ndarray
  restored: np.ndarray
  positions: np.ndarray
  labels: np.ndarray
  segments: np.ndarray
  boundary: np.ndarray
  order_label: int


def view_instance(features: Mapping[str, np.ndarray]) -> View:
  """Takes a record's features apart; they must be those of `ALL_FEATURES`."""
  num_tokens = int(features[names.INPUT_MASK].sum())
  used = int((features[names.MASKED_LM_WEIGHTS] > 0).sum())
  ids = features[names.INPUT_IDS][:num_tokens]
  positions, labels = features[names.MASKED_LM_POSITIONS][:used], features[names.MASKED_LM_IDS][:used]
  restored = ids.copy()
  restored[positions[positions < num_tokens]] = labels[positions < num_tokens]
  return View(
    ids,
    restored,
    positions,
    labels,
    features[names.SEGMENT_IDS][:num_tokens],
    features[names.TOKEN_BOUNDARY][:num_tokens],
    int(features[names.SENTENCE_ORDER_LABELS_FEATURE][0]),
  )


class Validator:
  """Checks instances one by one.

  Args:
    tokenizer: the vocabulary of the records.
    spec: S and P.
    whole_word: where words start, none of which may be masked in part: one of `WORD_RULES`.
    sentence_pair: kind of the pairs; `none` has one segment, and no label 1, as `ordered`.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    *,
    spec: PretrainingSpec,
    whole_word: str = "original",
    sentence_pair: str = "sop",
  ):
    self._tokenizer = tokenizer
    self.spec = spec
    self._special = np.array([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id])
    self._word_starts = tokenizer.word_starts(whole_word)
    self._has_words = whole_word != "none"
    self._num_separators = 1 if sentence_pair == "none" else 2
    self._labels = (0,) if sentence_pair in ("none", "ordered") else (0, 1)

  def problems(self, features: Mapping[str, np.ndarray]) -> list[str]:
    """What is wrong with an instance; empty where nothing is."""
    found = self._shape_problems(features)
    if found:
      return found
    view = view_instance(features)
    return (
      self._padding_problems(features, len(view.ids))
      or self._prediction_problems(view)
      or [*self._structure_problems(view), *self._word_problems(view)]
    )

  def _shape_problems(self, features: Mapping[str, np.ndarray]) -> list[str]:
    if set(features) != set(names.ALL_FEATURES):
      return [f"the features are {sorted(features)} and not {list(names.ALL_FEATURES)}"]
    found = []
    for name, values in features.items():
      kind = "f" if name in names.FLOAT_FEATURES else "i"
      if values.dtype.kind != kind or len(values) != self.spec.length(name):
        found.append(
          f"{name} has {len(values)} values of {values.dtype} and not {self.spec.length(name)} of kind {kind}"
        )
    return found

  def _padding_problems(self, features: Mapping[str, np.ndarray], num_tokens: int) -> list[str]:
    found = []
    mask, weights = features[names.INPUT_MASK], features[names.MASKED_LM_WEIGHTS]
    if not np.array_equal(mask, np.arange(len(mask)) < num_tokens):
      found.append("input_mask is not ones followed by zeros")
    used = int((weights > 0).sum())
    if not np.array_equal(weights, np.arange(len(weights)) < used):
      found.append("masked_lm_weights is not ones followed by zeros")
    for name, real in (
      *((name, num_tokens) for name in names.TOKEN_FEATURES),
      (names.MASKED_LM_POSITIONS, used),
      (names.MASKED_LM_IDS, used),
    ):
      if features[name][real:].any():
        found.append(f"{name} is not 0 in its padding")
    for name in (names.INPUT_IDS, names.MASKED_LM_IDS):
      if features[name].min() < 0 or features[name].max() >= self._tokenizer.vocab_size:
        found.append(
          f"{name} holds {features[name].max()}, outside the vocabulary of {self._tokenizer.vocab_size}"
        )
    if features[names.SENTENCE_ORDER_LABELS_FEATURE][0] not in self._labels:
      found.append(f"the sentence order label is {features[names.SENTENCE_ORDER_LABELS_FEATURE][0]}")
    return found

  def _prediction_problems(self, view: View) -> list[str]:
    if len(view.positions) and (view.positions[-1] >= len(view.ids) or (np.diff(view.positions) <= 0).any()):
      return ["masked_lm_positions are not increasing positions of the sequence"]
    return ["a special piece is an answer"] if np.isin(view.labels, self._special).any() else []

  def _structure_problems(self, view: View) -> list[str]:
    tokenizer = self._tokenizer
    separators = np.flatnonzero(view.restored == tokenizer.sep_id)
    if len(view.ids) < 3 or view.ids[0] != tokenizer.cls_id or view.ids[-1] != tokenizer.sep_id:
      return ["the sequence is not [CLS] … [SEP]"]
    if len(separators) != self._num_separators:
      return [f"the sequence has {len(separators)} [SEP] and not {self._num_separators}"]
    if not np.array_equal(view.segments, np.arange(len(view.ids)) > separators[0]):
      return ["segment_ids do not change behind the first [SEP]"]
    return []

  def _word_problems(self, view: View) -> list[str]:
    if not self._has_words:
      return []
    special = np.isin(view.restored, self._special)
    expected = self._word_starts[view.restored] | special
    if not np.array_equal(view.boundary, expected):
      return ["token_boundary is not where words start"]
    opens = expected | np.concatenate([[True], special[:-1]])  # What follows a special piece opens a word.
    word = np.cumsum(opens)
    masked = np.zeros(len(view.ids), bool)
    masked[view.positions] = True
    if np.isin(word[masked], word[~masked]).any():
      return ["a word is masked in part"]
    return []


class Measurements:
  """Histograms over instances, of records made by any program; named as those of `Statistics`."""

  def __init__(self, tokenizer: Tokenizer):
    self._mask_id = tokenizer.mask_id
    self._torn = tokenizer.torn_pieces
    self._histograms: dict[str, collections.Counter[Any]] = collections.defaultdict(collections.Counter)

  def add(self, view: View) -> None:
    shown = view.ids[view.positions]
    masked, kept = int((shown == self._mask_id).sum()), int((shown == view.labels).sum())
    kinds = {"masked": masked, "kept": kept, "random": len(shown) - masked - kept}
    runs = np.split(view.positions, np.flatnonzero(np.diff(view.positions) > 1) + 1) if len(shown) else []
    columns: dict[str, Mapping[Any, int] | Sequence[Any]] = {
      "lengths": [len(view.ids)],
      "predictions": [len(view.positions)],
      "segment_a": [int((view.segments == 0).sum())],
      "word_starts": [int(view.boundary.sum())],
      "torn": [int((self._torn[view.restored] & (view.boundary > 0)).sum())],
      "labels": [view.order_label],
      "kinds": kinds,
      "run_pieces": [len(run) for run in runs],
      "run_words": [max(1, int(view.boundary[run].sum())) for run in runs],
    }
    for name, values in columns.items():
      self._histograms[name].update(values)

  def update(self, other: "Measurements") -> None:
    """Adds those of other files."""
    for name, histogram in other._histograms.items():
      self._histograms[name].update(histogram)

  def summary(self) -> dict[str, Any]:
    """Means, percentiles and shares; {} without an instance."""
    instances = self._histograms["lengths"].total()
    if not instances:
      return {}
    lengths, predictions = self._histograms["lengths"], self._histograms["predictions"]
    answers = max(1, _total(predictions))
    return {
      "instances": instances,
      "label1_fraction": self._histograms["labels"][1] / instances,
      "seq_len_mean": _total(lengths) / instances,
      "seq_len_pct": {str(p): _percentile(lengths, p) for p in (0, 5, 10, 25, 50, 75, 90, 100)},
      "full_fraction": lengths[max(lengths)] / instances,
      "segA_len_mean": _total(self._histograms["segment_a"]) / instances,
      "predictions_mean": _total(predictions) / instances,
      "predictions_min": min(predictions),
      "predictions_max": max(predictions),
      **{kind: self._histograms["kinds"][kind] / answers for kind in KINDS},
      "word_start_fraction": _total(self._histograms["word_starts"]) / _total(lengths),
      "torn_fraction": _total(self._histograms["torn"]) / _total(lengths),
      **{name: _distribution(self._histograms[name]) for name in ("run_pieces", "run_words")},
    }


def _total(histogram: collections.Counter[int]) -> int:
  return sum(value * count for value, count in histogram.items())


def _percentile(histogram: collections.Counter[int], percent: float) -> float:
  """As NumPy's, with linear interpolation, of the values that the histogram counts."""
  values = sorted(histogram)
  last = np.cumsum([histogram[value] for value in values]) - 1  # Place of the last of each value.
  place = percent / 100 * last[-1]
  low, high = (values[int(np.searchsorted(last, at))] for at in (math.floor(place), math.ceil(place)))
  return float(low + (high - low) * (place - math.floor(place)))


def _distribution(histogram: collections.Counter[int]) -> dict[str, float]:
  return {str(value): histogram[value] / histogram.total() for value in sorted(histogram)}


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
  num_workers: int | None = None,
) -> Findings:
  """What is found in all files; it does not depend on the number of processes."""
  if num_workers is None:
    num_workers = min(os.cpu_count() or 1, sum(map(files.size, paths)) // _WORTH_A_WORKER)
  inspect = functools.partial(inspect_file, tokenizer=tokenizer, validate=validate)
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


def inspect_file(path: str, tokenizer: Tokenizer, *, validate: bool) -> Findings:
  """Reads a file to its end, or to the first record that cannot be read; measures, and reports what is wrong."""
  findings = Findings(tokenizer)
  for _, view in views(path, tokenizer, findings, validate=validate):
    findings.measurements.add(view)
  return findings


def views(
  path: str,
  tokenizer: Tokenizer,
  findings: Findings,
  *,
  validate: bool = False,
) -> Iterator[tuple[int, View]]:
  """Yields the sound instances with their places; reports what is wrong with the others, and with the file.

  Args:
    path: a file of records.
    tokenizer: the vocabulary of the records.
    findings: where problems go.
    validate: compare the file with its manifest and its index, too.
  """
  manifest = Manifest.find(os.path.dirname(path))
  if manifest is not None:
    manifest.check(vocab_size=tokenizer.vocab_size, vocab_sha256=tokenizer.model_sha256, source=path)
  if validate:
    for what in _file_problems(path, manifest):
      findings.report(Problem(path, None, what))
  validator: Validator | None = None
  try:
    for index, record in enumerate(read_records(path)):
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
