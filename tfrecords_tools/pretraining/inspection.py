"""What files of records really hold: instances as text, statistics, and everything that is wrong."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import math
import os
from typing import Any, NamedTuple

import numpy as np

from albert_tf.errors import UserError
from albert_tf.records import Manifest, PretrainingSpec, RecordFile, compact, find_manifest, read_records
from albert_tf.records import features as names
from albert_tf.records.decode import decode_example, decode_record
from albert_tf.records.shard_index import index_problem
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.pretraining.masking import KEEP_SHARE, MASK_SHARE, prediction_budget
from tfrecords_tools.pretraining.shards import size_and_crc32c
from tfrecords_tools.pretraining.statistics import KINDS
from tfrecords_tools.pretraining.validation import Validator, View, view_instance

_SIGMAS = 5.0  # One false alarm in about two million checks.
_SHARES = dict(zip(KINDS, (MASK_SHARE, KEEP_SHARE, 1 - MASK_SHARE - KEEP_SHARE), strict=True))


class Problem(NamedTuple):
  """Something wrong: with a record, or with the file where `record` is None."""

  path: str
  record: int | None
  what: str

  def __str__(self) -> str:
    where = self.path if self.record is None else f"{self.path}, record {self.record}"
    return f"{where}: {self.what}"


class Measurements:
  """Histograms over instances, of records made by any program; named as those of `Statistics`."""

  def __init__(self, tokenizer: Tokenizer):
    self._mask_id = tokenizer.mask_id
    self._torn = tokenizer.torn_pieces
    self.vocab_size = tokenizer.vocab_size
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

  def counts(self) -> dict[str, int]:
    """Numbers behind the shares, for tests of significance."""
    labels, kinds = self._histograms["labels"], self._histograms["kinds"]
    return {"label_0": labels[0], "label_1": labels[1], **{kind: kinds[kind] for kind in KINDS}}

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


def proportion_problems(
  counts: Mapping[str, int], *, vocab_size: int, balanced_labels: bool, masked: bool = True
) -> list[str]:
  """Shares that are further from what the settings ask for than chance explains.

  Args:
    counts: masked, kept, random, label_0, label_1.
    vocab_size: a random piece is the original one once in so many times, and is then counted as kept.
    balanced_labels: both sentence order labels are equally likely.
    masked: whether there should be predictions at all.
  """
  found = []
  total = sum(counts[name] for name in KINDS)
  if masked and not total:
    found.append("no piece is masked")
  for name, expected in _SHARES.items():
    if total and _too_far(counts[name], total, expected, slack=0.1 / vocab_size):
      found.append(f"{name} pieces are {counts[name] / total:.4f} of {total} and not about {expected:g}")
  labels = counts["label_0"] + counts["label_1"]
  if balanced_labels and labels and _too_far(counts["label_1"], labels, 0.5):
    found.append(f"sentence order label 1 is {counts['label_1'] / labels:.4f} of {labels} and not about 0.5")
  if not balanced_labels and not counts["label_0"]:
    found.append("every sentence order label is 1")
  return found


def _too_far(count: int, total: int, expected: float, *, slack: float = 0.0) -> bool:
  deviation = math.sqrt(expected * (1 - expected) / total)
  return abs(count / total - expected) > _SIGMAS * deviation + slack


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


class Inspector:
  """Goes through files: shows, measures, and notes what is wrong.

  Args:
    tokenizer: the vocabulary of the records.
    show: called for each sound instance, with a function that renders it.
    max_records: read at most so many records of each file; then the files as a whole are not checked.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    *,
    show: Callable[[Callable[[], str]], None] = lambda render: None,
    max_records: int | None = None,
  ):
    self._tokenizer = tokenizer
    self._show = show
    self._max_records = max_records
    self._manifests: dict[str, Manifest | None] = {}  # By directory.
    self.measurements = Measurements(tokenizer)
    self.problems: list[Problem] = []

  def inspect(self, path: str, *, validate: bool) -> None:
    """Reads one file to its end, or to the first record that cannot be read."""
    directory = os.path.dirname(path)
    if directory not in self._manifests:
      manifest = self._manifests[directory] = find_manifest([path])
      if manifest is not None:
        tokenizer = self._tokenizer
        manifest.check(vocab_size=tokenizer.vocab_size, vocab_sha256=tokenizer.model_sha256, source=path)
    manifest = self._manifests[directory]
    if validate and self._max_records is None:
      self.problems += _file_problems(path, manifest)
    validator = None
    index = -1
    try:
      for index, record in enumerate(read_records(path)):
        if self._max_records is not None and index >= self._max_records:
          return
        validator = validator or _make_validator(self._tokenizer, manifest, record)
        self.problems += [
          Problem(path, index, what) for what in self._instance(record, validator, path, index)
        ]
    except UserError as error:
      self.problems.append(Problem(path, None, str(error)))
    entry = _entry(manifest, path)
    if entry and self._max_records is None and index + 1 != entry.num_records:
      self.problems.append(Problem(path, None, f"{index + 1} records could be read of {entry.num_records}"))

  def _instance(self, record: bytes, validator: Validator, path: str, index: int) -> list[str]:
    """Shows and measures a sound instance; says what is wrong with any."""
    features = decode_record(record, validator.spec)
    if compact.word_bytes_of(record):
      validator.add_boundary(features)
    if wrong := validator.problems(features):
      return wrong
    view = view_instance(features)
    self.measurements.add(view)
    self._show(
      lambda: (
        f"--- {os.path.basename(path)} record {index}: {len(view.ids)} tokens, {len(view.positions)} "
        f"predictions, label {view.order_label}\n{render(view, self._tokenizer)}"
      )
    )
    manifest = self._manifests[os.path.dirname(path)]
    return _budget_problem(view, manifest) if manifest else []

  def check_proportions(self) -> None:
    """Notes shares over all files that their settings do not explain."""
    if not self.measurements.summary():
      return
    settings = [manifest.settings for manifest in self._manifests.values() if manifest is not None]
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
      single_segment=manifest.sentence_pair == "none",
    )
  if compact.word_bytes_of(first):
    raise UserError(
      "Compact records do not tell their lengths. Received: no manifest.json beside them. Copy it there."
    )
  features = decode_example(first)
  lengths = [len(features.get(name, ())) for name in (names.INPUT_IDS, names.MASKED_LM_IDS)]
  return Validator(tokenizer, spec=PretrainingSpec(*lengths))
