"""What record files say about themselves: their manifests and vocabulary, compared with what the command asks for."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.pipelines.masking import MaskingConfig
from albert_tf.records import find_manifests
from albert_tf.records.manifest import MODEL_FIELDS, check_agreement
from albert_tf.records.ngrams import ngram_probabilities
from albert_tf.tokenization import Tokenizer, load_tokenizer
from albert_tf.tokenization.config import find_vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsSource:
  """What the record files say about themselves, where the command did not contradict it.

  Attributes:
    vocab_size: pieces of their vocabulary, or None if nothing tells.
    tokenizer_path, vocab_sha256: a vocabulary or a directory with one, and its hash; empty if there is none.
    settings: how the training records of each directory were made; empty if nothing tells.
    sentence_task: what their labels say, see `StepConfig`; that of the original release if nothing tells.
  """

  vocab_size: int | None
  max_seq_length: int
  max_predictions_per_seq: int
  tokenizer_path: str
  vocab_sha256: str
  settings: Mapping[str, Mapping[str, Any]]
  sentence_task: str = "sentence_order"

  def trained_sentence_task(self, sentence_loss: str) -> str:
    """That of a run: "auto" the records' own, "off" none; "on" trains whatever labels there are."""
    if sentence_loss == "off":
      return ""
    return self.sentence_task or ("sentence_order" if sentence_loss == "on" else "")

  def masking(self, masked_lm_prob: float | None) -> MaskingConfig:
    """Fresh masks by the rules of the stored ones; a share of one's own has as many predictions as it needs."""
    stored = {settings.get("masked_lm_prob", 0.15) for settings in self.settings.values()} or {0.15}
    if masked_lm_prob is None or stored == {masked_lm_prob}:
      share, predictions = self._setting("masked_lm_prob", 0.15), self.max_predictions_per_seq
    else:
      share, predictions = masked_lm_prob, max(1, round(masked_lm_prob * self.max_seq_length))
    ngrams = ngram_probabilities(self._setting("ngram", 3), self._setting("ngram_distribution", "inverse"))
    return MaskingConfig(
      masked_lm_prob=share,
      max_predictions_per_seq=predictions,
      ngram_probabilities=tuple(ngrams.tolist()),
      whole_word=self._setting("whole_word", "original"),
      # Where label 1 means the swapped order and nothing else, in all training records.
      redraw_order={
        (of.get("sentence_pair"), of.get("compatibility", "none")) for of in self.settings.values()
      }
      == {("sop", "none")},
      vocab_sha256=self.vocab_sha256,
    )

  def _setting(self, name: str, default: Any) -> Any:
    """How all training records were made."""
    values = {directory: settings.get(name, default) for directory, settings in self.settings.items()}
    if len(set(values.values())) > 1:
      received = ", ".join(f"{value} in {directory}" for directory, value in values.items())
      raise UserError(
        f"Fresh masks are drawn by one rule, that of the stored ones. Received: {name} {received}. Name records that "
        "were masked alike, or train on the stored masks with --masking=stored."
      )
    return next(iter(values.values()), default)

  def check_vocab_size(self, vocab_size: int) -> None:
    """Refuses a model with another vocabulary."""
    if self.vocab_size is not None and vocab_size != self.vocab_size:
      raise UserError(
        "The model and its records must have the same vocabulary. Received: vocab_size="
        f"{vocab_size} in the model's configuration, {self.vocab_size} in the records. "
        "Correct the configuration, or make the records again with the model's vocabulary."
      )


def describe_records(
  paths: Sequence[str],
  eval_paths: Sequence[str],
  *,
  spm_model_file: str,
  max_seq_length: int | None,
  max_predictions_per_seq: int | None,
) -> RecordsSource:
  """Reads the manifests beside the training and held-out files and checks them against each other and the command.

  Args:
    spm_model_file: the vocabulary the command names; empty for the one beside the records.
    max_seq_length, max_predictions_per_seq: what the command asks for; None takes the manifest's.
  """
  directory = os.path.dirname(paths[0])
  manifests = find_manifests(paths)
  tokenizer_path, tokenizer = _tokenizer_of(spm_model_file, directory or ".", is_ours=bool(manifests))
  vocab_sha256 = tokenizer.model_sha256 if tokenizer else ""
  if not manifests:  # The original release's, whose lengths these are by default.
    return RecordsSource(
      vocab_size=tokenizer.vocab_size if tokenizer else None,
      max_seq_length=max_seq_length or 512,
      max_predictions_per_seq=max_predictions_per_seq or 20,
      tokenizer_path=tokenizer_path,
      vocab_sha256=vocab_sha256,
      settings={},
    )
  check_agreement({**manifests, **find_manifests(eval_paths)}, MODEL_FIELDS)
  manifest = manifests[directory]
  manifest.check(
    vocab_sha256=vocab_sha256 or None,
    max_seq_length=max_seq_length,
    max_predictions_per_seq=max_predictions_per_seq,
    source=directory,
  )
  return RecordsSource(
    vocab_size=manifest.vocab_size,
    max_seq_length=manifest.max_seq_length,
    max_predictions_per_seq=manifest.max_predictions_per_seq,
    tokenizer_path=tokenizer_path,
    vocab_sha256=vocab_sha256,
    sentence_task=manifest.sentence_task,
    settings={where: {**each.settings, "whole_word": each.whole_word} for where, each in manifests.items()},
  )


def _tokenizer_of(named: str, beside: str, *, is_ours: bool) -> tuple[str, Tokenizer | None]:
  """Path and tokenizer: the one beside the records, which knows how their text was normalised, or the named one.

  Beside foreign records only `spm.model` counts: what else lies there may be of something else.
  """
  there = bool(find_vocabulary(beside)) if is_ours else files.exists(os.path.join(beside, "spm.model"))
  own = load_tokenizer(beside) if there else None
  if not named:
    return (beside, own) if own else ("", None)
  tokenizer = load_tokenizer(named)
  if is_ours and own and own.model_sha256 == tokenizer.model_sha256:
    return beside, own
  return named, tokenizer
