"""Shows the content of record files: instances as text, and problems.

`inspect_records.py` prints it; tests judge records with it.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import os

import google_crc32c
import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.progress import track
from albert_tf.records import Manifest, PretrainingSpec, missing_files, read_records
from albert_tf.records import features as names
from albert_tf.records.parse import decode_example
from albert_tf.tokenization import Tokenizer
from albert_tf.tokenization.masked_text import masked_text

_MOST_PROBLEMS = 20  # Problems described; all are counted.


@dataclasses.dataclass(frozen=True)
class View:
  """One instance, taken apart.

  Attributes:
    ids: int64 [T] the input, without padding.
    restored: int64 [T] the same with the original tokens at the masked positions.
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
  num_predictions = int((features[names.MASKED_LM_WEIGHTS] > 0).sum())
  ids = features[names.INPUT_IDS][:num_tokens]
  positions = features[names.MASKED_LM_POSITIONS][:num_predictions]
  labels = features[names.MASKED_LM_IDS][:num_predictions]
  # In a damaged record a position may be outside of the sequence.
  is_inside = positions < num_tokens
  restored = ids.copy()
  restored[positions[is_inside]] = labels[is_inside]
  return View(
    ids=ids,
    restored=restored,
    positions=positions,
    labels=labels,
    segments=features[names.SEGMENT_IDS][:num_tokens],
    boundary=features[names.TOKEN_BOUNDARY][:num_tokens],
    order_label=int(features[names.SENTENCE_ORDER_LABELS_FEATURE][0]),
  )


class Findings:
  """Problems of some files, in constant memory.

  Attributes:
    problems: the first ones, as sentences.
    num_problems: the number of all problems.
  """

  def __init__(self) -> None:
    self.problems: list[str] = []
    self.num_problems = 0

  def report(self, where: str, problem: str) -> None:
    self.num_problems += 1
    if len(self.problems) < _MOST_PROBLEMS:
      self.problems.append(f"{where}: {problem}")


def inspect_files(paths: Sequence[str], tokenizer: Tokenizer) -> Findings:
  """Checks each file and its manifest; reads to its end, or to the first record that cannot be read.

  Args:
    paths: of the record files.
    tokenizer: the vocabulary of the records.

  Returns:
    What is wrong.
  """
  findings = Findings()
  for path in track(paths, len(paths), desc="Inspecting", unit="files"):
    try:
      _check_file(path, findings)
    except files.MissingFileError as error:
      findings.report(path, str(error))
      continue
    for _ in views(path, tokenizer, findings):
      pass  # Reading a record checks it.
  for directory in sorted({os.path.dirname(path) for path in paths}):
    manifest = Manifest.find(directory)
    if manifest is not None:
      for name in missing_files(directory, manifest):
        findings.report(os.path.join(directory, name), "it is missing")
  return findings


def _check_file(path: str, findings: Findings) -> None:
  """Compares the bytes of a file with what its manifest says, where there is one."""
  directory, name = os.path.split(path)
  manifest = Manifest.find(directory)
  if manifest is None:
    return
  # A file that is not listed was put there by someone else.
  crcs = {file.name: file.crc32c for file in manifest.files}
  if name not in crcs:
    findings.report(path, "the manifest does not list it")
    return
  crc = 0
  with files.open_binary(path) as stream:
    while chunk := stream.read(1 << 20):
      crc = google_crc32c.extend(crc, chunk)
  if f"{crc:08x}" != crcs[name]:
    findings.report(path, f"its CRC32C is {crc:08x}, and not {crcs[name]} as the manifest says")


def views(path: str, tokenizer: Tokenizer, findings: Findings) -> Iterator[tuple[int, View]]:
  """Yields the number and view of each sound instance; reports what is wrong with the others."""
  manifest = Manifest.find(os.path.dirname(path))
  validator: Validator | None = None
  if manifest is not None:
    manifest.check(
      vocab_size=tokenizer.vocab_size, vocab_sha256=tokenizer.model_sha256, source=path
    )
    validator = Validator(
      tokenizer,
      manifest.spec,
      whole_word=manifest.whole_word,
      sentence_pair=manifest.sentence_pair,
    )
  try:
    for index, record in enumerate(read_records(path)):
      features = decode_example(record, source=f"record {index}")
      if validator is None:
        # Records of other programs have the lengths of the first.
        max_seq_length = len(features.get(names.INPUT_IDS, ()))
        max_predictions = len(features.get(names.MASKED_LM_IDS, ()))
        validator = Validator(tokenizer, PretrainingSpec(max_seq_length, max_predictions))
      problems = validator.problems(features)
      for problem in problems:
        findings.report(f"{path}, record {index}", problem)
      if not problems:
        yield index, view_instance(features)
  # Behind a damaged record nobody knows where the next one begins.
  except UserError as error:
    findings.report(path, str(error))


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
    spec: PretrainingSpec,
    *,
    whole_word: str = "original",
    sentence_pair: str = "sop",
  ):
    self._tokenizer = tokenizer
    self._lengths = {name: spec.length(name) for name in names.ALL_FEATURES}
    self._special_ids = [
      tokenizer.pad_id,
      tokenizer.cls_id,
      tokenizer.sep_id,
      tokenizer.mask_id,
    ]
    self._word_starts = tokenizer.word_starts(whole_word)
    self._has_words = whole_word != "none"
    self._num_separators = 2
    if sentence_pair == "none":
      self._num_separators = 1
    self._has_labels = sentence_pair not in ("none", "ordered")

  def problems(self, features: Mapping[str, np.ndarray]) -> list[str]:
    """The problems of an instance; empty without any."""
    # Without these lengths nothing can be taken apart.
    lengths = {name: len(features[name]) for name in sorted(features)}
    if lengths != self._lengths:
      return [f"the features are {lengths} and not {self._lengths}"]
    view = view_instance(features)
    problems = list(self._value_problems(features, view))
    if not problems:
      # Only with sound values can the sequence be looked at.
      problems = list(self._sequence_problems(view))
    return problems

  def _value_problems(self, features: Mapping[str, np.ndarray], view: View) -> Iterator[str]:
    """Problems of masks, padding, ids and labels."""
    num_tokens = len(view.ids)
    num_predictions = len(view.positions)
    # Masks and padding.
    for mask_name, padded_names, count in (
      (names.INPUT_MASK, names.TOKEN_FEATURES, num_tokens),
      (names.MASKED_LM_WEIGHTS, names.PREDICTION_FEATURES, num_predictions),
    ):
      mask = features[mask_name]
      if not np.array_equal(mask, np.arange(len(mask)) < count):
        yield f"{mask_name} is not ones followed by zeros"
      for name in padded_names:
        if features[name][count:].any():
          yield f"{name} is not 0 in its padding"

    # Ids and labels.
    vocab_size = self._tokenizer.vocab_size
    for name in (names.INPUT_IDS, names.MASKED_LM_IDS):
      if features[name].min() < 0 or features[name].max() >= vocab_size:
        yield f"{name} holds {features[name].max()}, outside the vocabulary of {vocab_size}"
    largest_label = int(self._has_labels)
    if not 0 <= view.order_label <= largest_label:
      yield f"the sentence order label is {view.order_label}"

    # Predictions.
    is_increasing = (np.diff(view.positions) > 0).all()
    if num_predictions and not (is_increasing and view.positions[-1] < num_tokens):
      yield "masked_lm_positions are not increasing positions of the sequence"
    elif np.isin(view.labels, self._special_ids).any():
      yield "a special token is an answer"

  def _sequence_problems(self, view: View) -> Iterator[str]:
    """Problems of segments and words."""
    ids = view.restored
    tokenizer = self._tokenizer
    # Segments, in the text before it was masked.
    separators = np.flatnonzero(ids == tokenizer.sep_id)
    if len(ids) < 3 or ids[0] != tokenizer.cls_id or ids[-1] != tokenizer.sep_id:
      yield "the sequence is not [CLS] … [SEP]"
    elif len(separators) != self._num_separators:
      yield f"the sequence has {len(separators)} [SEP] and not {self._num_separators}"
    elif not np.array_equal(view.segments, np.arange(len(ids)) > separators[0]):
      yield "segment_ids do not change behind the first [SEP]"
    if not self._has_words:
      return

    # Words, numbered: [CLS] ▁re ading [SEP] ▁room are 1 2 2 3 4.
    is_special = np.isin(ids, self._special_ids)
    starts_word = self._word_starts[ids] | is_special
    is_first = starts_word.copy()
    is_first[1:] |= is_special[:-1]  # The token after a special token begins a word.
    word_numbers = np.cumsum(is_first)
    is_masked = np.isin(np.arange(len(ids)), view.positions)
    if not np.array_equal(view.boundary, starts_word):
      yield "token_boundary is not where words start"
    elif np.isin(word_numbers[is_masked], word_numbers[~is_masked]).any():
      yield "a word is masked in part"


def render_first(
  paths: Sequence[str], tokenizer: Tokenizer, count: int, findings: Findings
) -> Iterator[str]:
  """Yields the first sound instances as text; reports what is wrong with others on the way."""
  for path in paths:
    instances = views(path, tokenizer, findings)
    for index, view in itertools.islice(instances, count):
      count -= 1
      yield (
        f"--- {os.path.basename(path)} record {index}: {len(view.ids)} tokens, "
        f"{len(view.positions)} predictions, label {view.order_label}\n"
        + masked_text(view.ids, view.positions, view.labels, tokenizer)
      )
