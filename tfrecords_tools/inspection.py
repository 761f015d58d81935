"""Shows the content of record files: instances as text, statistics, and problems."""

import collections
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import os
from typing import Any

import google_crc32c
import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.progress import track
from albert_tf.records import Manifest, PretrainingSpec, missing_files, read_records
from albert_tf.records import features as names
from albert_tf.records.parse import decode_example
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.pretraining.masking import prediction_budget
from tfrecords_tools.pretraining.statistics import KINDS

_MOST_PROBLEMS = 20  # Problems described; all are counted.


@dataclasses.dataclass(frozen=True)
class View:
  """One instance, taken apart.

  Attributes:
    ids: int64 [T] the input, without padding.
    restored: int64 [T] the same with the original tokens at the masked positions.
    positions, labels: int64 [M] the predictions.
    segments, boundary: int64 [T].
    order_label, row_length: 0 or 1; S, with padding.
  """

  ids: np.ndarray
  restored: np.ndarray
  positions: np.ndarray
  labels: np.ndarray
  segments: np.ndarray
  boundary: np.ndarray
  order_label: int
  row_length: int


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
    len(features[names.INPUT_IDS]),
  )


class Validator:
  """Checks instances one by one.

  Args:
    tokenizer: the vocabulary of the records.
    spec: S and P.
    whole_word: where words start, none of which may be masked in part: one of `WORD_RULES`.
    sentence_pair: kind of the pairs; `none` has one segment, and no label 1, as `ordered`.
    masked_lm_prob: share of the tokens that may be masked; None: any.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    *,
    spec: PretrainingSpec,
    whole_word: str = "original",
    sentence_pair: str = "sop",
    masked_lm_prob: float | None = None,
  ):
    self._tokenizer = tokenizer
    self._spec = spec
    self._lengths = {name: spec.length(name) for name in names.ALL_FEATURES}
    self._special = np.array([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id])
    self._word_starts = tokenizer.word_starts(whole_word)
    self._has_words = whole_word != "none"
    self._num_separators = 1 if sentence_pair == "none" else 2
    self._labels = (0,) if sentence_pair in ("none", "ordered") else (0, 1)
    self._masked_lm_prob = masked_lm_prob

  def problems(self, features: Mapping[str, np.ndarray]) -> list[str]:
    """The problems of an instance; empty without any."""
    lengths = {name: len(features[name]) for name in sorted(features)}
    if lengths != self._lengths:
      return [f"the features are {lengths} and not {self._lengths}"]
    view = view_instance(features)
    return [*self._value_problems(features, view)] or [*self._sequence_problems(view)]

  def _value_problems(self, features: Mapping[str, np.ndarray], view: View) -> Iterator[str]:
    """Problems of masks, padding, ids and labels."""
    real, used = len(view.ids), len(view.positions)
    for name, count in ((names.INPUT_MASK, real), (names.MASKED_LM_WEIGHTS, used)):
      if not np.array_equal(features[name], np.arange(len(features[name])) < count):
        yield f"{name} is not ones followed by zeros"
    padded = dict.fromkeys(names.TOKEN_FEATURES, real) | dict.fromkeys(names.PREDICTION_FEATURES, used)
    for name, count in padded.items():
      if features[name][count:].any():
        yield f"{name} is not 0 in its padding"
    size = self._tokenizer.vocab_size
    for name in (names.INPUT_IDS, names.MASKED_LM_IDS):
      if features[name].min() < 0 or features[name].max() >= size:
        yield f"{name} holds {features[name].max()}, outside the vocabulary of {size}"
    if view.order_label not in self._labels:
      yield f"the sentence order label is {view.order_label}"
    if used and (view.positions[-1] >= real or (np.diff(view.positions) <= 0).any()):
      yield "masked_lm_positions are not increasing positions of the sequence"
    elif np.isin(view.labels, self._special).any():
      yield "a special token is an answer"
    if self._masked_lm_prob is not None:
      most = self._spec.max_predictions_per_seq
      budget = prediction_budget(real, masked_lm_prob=self._masked_lm_prob, max_predictions=most)
      if used > budget:
        yield f"{used} tokens are masked and not {budget}"

  def _sequence_problems(self, view: View) -> Iterator[str]:
    """Problems of segments and words."""
    ids, tokenizer = view.restored, self._tokenizer
    separators = np.flatnonzero(ids == tokenizer.sep_id)
    if len(ids) < 3 or ids[0] != tokenizer.cls_id or ids[-1] != tokenizer.sep_id:
      yield "the sequence is not [CLS] … [SEP]"
    elif len(separators) != self._num_separators:
      yield f"the sequence has {len(separators)} [SEP] and not {self._num_separators}"
    elif not np.array_equal(view.segments, np.arange(len(ids)) > separators[0]):
      yield "segment_ids do not change behind the first [SEP]"
    if not self._has_words:
      return
    special = np.isin(ids, self._special)
    starts = self._word_starts[ids] | special
    opens = starts | np.concatenate([[True], special[:-1]])  # The token after a special token opens a word.
    word = np.cumsum(opens)
    masked = np.zeros(len(ids), bool)
    masked[view.positions] = True
    if not np.array_equal(view.boundary, starts):
      yield "token_boundary is not where words start"
    elif np.isin(word[masked], word[~masked]).any():
      yield "a word is masked in part"


class Measurements:
  """Histograms over instances, of records made by any program; named as those of `Statistics`."""

  def __init__(self, tokenizer: Tokenizer):
    self._mask_id = tokenizer.mask_id
    self._histograms: dict[str, collections.Counter[Any]] = collections.defaultdict(collections.Counter)

  def add(self, view: View) -> None:
    shown = view.ids[view.positions]
    masked, kept = int((shown == self._mask_id).sum()), int((shown == view.labels).sum())
    kinds = {"masked": masked, "kept": kept, "random": len(shown) - masked - kept}
    runs = np.split(view.positions, np.flatnonzero(np.diff(view.positions) > 1) + 1) if len(shown) else []
    columns: dict[str, Mapping[Any, int] | Sequence[Any]] = {
      "lengths": [len(view.ids)],
      "row_lengths": [view.row_length],
      "predictions": [len(view.positions)],
      "segment_a": [int((view.segments == 0).sum())],
      "labels": [view.order_label],
      "kinds": kinds,
      "run_pieces": [len(run) for run in runs],
      "run_words": [max(1, int(view.boundary[run].sum())) for run in runs],
    }
    for name, values in columns.items():
      self._histograms[name].update(values)

  def summary(self) -> dict[str, Any]:
    """Means and shares; {} without an instance. `segA_len_mean` has [CLS] and [SEP], `filled_fraction` no padding."""
    histograms = self._histograms
    instances = histograms["lengths"].total()
    if not instances:
      return {}
    tokens, answers = _total(histograms["lengths"]), _total(histograms["predictions"])
    runs = {name: histograms[name] for name in ("run_pieces", "run_words")}
    return {
      "instances": instances,
      "label1_fraction": histograms["labels"][1] / instances,
      "seq_len_mean": tokens / instances,
      "filled_fraction": tokens / _total(histograms["row_lengths"]),
      "segA_len_mean": _total(histograms["segment_a"]) / instances,
      "predictions_mean": answers / instances,
      **{kind: histograms["kinds"][kind] / max(1, answers) for kind in KINDS},
      **{name: {str(n): run[n] / run.total() for n in sorted(run)} for name, run in runs.items()},
    }


def _total(histogram: collections.Counter[int]) -> int:
  return sum(value * count for value, count in histogram.items())


class Findings:
  """Measurements and problems of some files, in constant memory.

  Attributes:
    measurements: of the sound instances.
    problems: the first ones, as sentences.
    num_problems: the number of all problems.
  """

  def __init__(self, tokenizer: Tokenizer):
    self.measurements = Measurements(tokenizer)
    self.problems: list[str] = []
    self.num_problems = 0

  def report(self, where: str, what: str) -> None:
    self.num_problems += 1
    if len(self.problems) < _MOST_PROBLEMS:
      self.problems.append(f"{where}: {what}")


def inspect_files(paths: Sequence[str], tokenizer: Tokenizer, *, validate: bool) -> Findings:
  """Reads each file to its end, or to the first record that cannot be read; measures, and reports what is wrong."""
  findings = Findings(tokenizer)
  for path in track(paths, len(paths), desc="Inspecting", unit="files"):
    if validate:
      _check_file(path, findings)
    for _, view in views(path, tokenizer, findings):
      findings.measurements.add(view)
  for directory in sorted(set(map(os.path.dirname, paths))) if validate else ():
    manifest = Manifest.find(directory)
    for name in missing_files(directory, manifest) if manifest else ():
      findings.report(os.path.join(directory, name), "it is missing")
  return findings


def views(path: str, tokenizer: Tokenizer, findings: Findings) -> Iterator[tuple[int, View]]:
  """Yields the sound instances with their places; reports what is wrong with the others."""
  manifest = Manifest.find(os.path.dirname(path))
  validator: Validator | None = None
  if manifest is not None:
    manifest.check(vocab_size=tokenizer.vocab_size, vocab_sha256=tokenizer.model_sha256, source=path)
    rules = {"whole_word": manifest.whole_word, "sentence_pair": manifest.sentence_pair}
    share = manifest.settings["masked_lm_prob"]
    validator = Validator(tokenizer, spec=manifest.spec, masked_lm_prob=share, **rules)
  try:
    for index, record in enumerate(read_records(path)):
      features = decode_example(record, source=f"record {index}")
      if validator is None:  # Records of other programs have the lengths of the first.
        lengths = (len(features.get(name, ())) for name in (names.INPUT_IDS, names.MASKED_LM_IDS))
        validator = Validator(tokenizer, spec=PretrainingSpec(*lengths))
      wrong = validator.problems(features)
      for what in wrong:
        findings.report(f"{path}, record {index}", what)
      if not wrong:
        yield index, view_instance(features)
  except UserError as error:
    findings.report(path, str(error))


def _check_file(path: str, findings: Findings) -> None:
  """Compares the bytes of a file with what its manifest says, where there is one."""
  manifest = Manifest.find(os.path.dirname(path))
  if manifest is None:
    return
  entry = next((file for file in manifest.files if file.name == os.path.basename(path)), None)
  if entry is None:
    findings.report(path, "the manifest does not list it")
    return
  crc = 0
  with files.open_binary(path) as stream:
    while chunk := stream.read(1 << 20):
      crc = google_crc32c.extend(crc, chunk)
  there, listed = (files.size(path), f"{crc:08x}"), (entry.num_bytes, entry.crc32c)
  if there != listed:
    findings.report(path, f"its bytes and CRC32C are {there}, and not {listed} as the manifest says")


def render_first(paths: Sequence[str], tokenizer: Tokenizer, count: int) -> Iterator[str]:
  """Yields the first sound instances as text."""
  instances = ((path, *found) for path in paths for found in views(path, tokenizer, Findings(tokenizer)))
  for path, index, view in itertools.islice(instances, count):
    yield (
      f"--- {os.path.basename(path)} record {index}: {len(view.ids)} tokens, {len(view.positions)} predictions, "
      f"label {view.order_label}\n{render(view, tokenizer)}"
    )


def render(view: View, tokenizer: Tokenizer) -> str:
  """The instance as text; an answer is {answer} where [MASK] is shown, {answer ✓} where kept, {shown → answer}."""
  answers = dict(zip(view.positions.tolist(), view.labels.tolist(), strict=True))
  words = []
  for position, piece_id in enumerate(view.ids.tolist()):
    piece = tokenizer.pieces[piece_id]
    if position in answers:
      text = tokenizer.piece_text(tokenizer.pieces[answers[position]])
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
