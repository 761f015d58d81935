"""One instance of a record, taken apart, and what is wrong with it."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from albert_tf.records import PretrainingSpec
from albert_tf.records import features as names
from albert_tf.tokenization import Tokenizer


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
