"""The records of a run: described by their manifest, checked at the start, read as distributed datasets."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.pipelines.batches import evaluation_batches, training_batches
from albert_tf.pipelines.checks import check_enough_records, check_records
from albert_tf.pipelines.fresh_masks import FreshMasking, FreshMasks
from albert_tf.pipelines.record_index import DataIdentity, RecordIndex, build_record_index
from albert_tf.records import Manifest, find_manifests
from albert_tf.records.manifest import MODEL_FIELDS, check_agreement
from albert_tf.records.ngrams import ngram_probabilities
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.tokenization import load_tokenizer
from albert_tf.tokenization.loading import find_tokenizer
from albert_tf.training.distribution import host_shard
from albert_tf.training.evaluation import EvaluationSet, Evaluator
from albert_tf.training.held_out import HeldOut, files_by_source, share_steps
from albert_tf.training.settings import MaskingConfig, PretrainingSettings

# Lengths of records that carry no manifest: the original release's defaults.
_DEFAULT_SEQ_LENGTH, _DEFAULT_PREDICTIONS = 512, 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsSource:
  """What the record files say about themselves, where the command did not contradict it.

  Attributes:
    vocab_size: pieces of their vocabulary, or None if nothing tells.
    tokenizer_path: a vocabulary or a directory with one; empty if there is none.
    directory: where the first file lies.
    baselines: held-out metrics of a model that ignores its input, as far as the manifests tell.
    vocab_sha256: hash of that vocabulary; empty if there is none.
    settings: how the training records of each directory were made; empty if nothing tells.
  """

  vocab_size: int | None
  max_seq_length: int
  max_predictions_per_seq: int
  tokenizer_path: str
  vocab_sha256: str
  directory: str
  baselines: Mapping[str, float]
  settings: Mapping[str, Mapping[str, Any]]

  def masking(self, masked_lm_prob: float | None) -> MaskingConfig:
    """Fresh masks by the rules of the stored ones; a share of one's own has as many predictions as it needs."""
    stored = self._setting("masked_lm_prob", 0.15)
    share, predictions = stored, self.max_predictions_per_seq
    if masked_lm_prob is not None and masked_lm_prob != stored:
      share, predictions = masked_lm_prob, max(1, round(masked_lm_prob * self.max_seq_length))
    ngrams = ngram_probabilities(self._setting("ngram", 3), self._setting("ngram_distribution", "inverse"))
    return MaskingConfig(
      masked_lm_prob=share,
      max_predictions_per_seq=predictions,
      ngram_probabilities=tuple(ngrams.tolist()),
      whole_word=self._setting("whole_word", "original"),
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
        f"{vocab_size} in the model's configuration, {self.vocab_size} in {self.directory}. "
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
  """Reads the manifests beside the files and checks them against each other and the command.

  Args:
    paths, eval_paths: training and held-out files.
    spm_model_file: the vocabulary the command names; empty for the one beside the records.
    max_seq_length, max_predictions_per_seq: what the command asks for; None takes the manifest's.

  Raises:
    UserError: command and records contradict each other, or records of two directories do, or files are missing.
  """
  directory = os.path.dirname(paths[0])
  manifests, eval_manifests = (
    find_manifests(files_of_split, notice=_say) for files_of_split in (paths, eval_paths)
  )
  tokenizer_path = spm_model_file or (directory if find_tokenizer(directory) else "")
  tokenizer = load_tokenizer(tokenizer_path) if tokenizer_path else None
  vocab_sha256 = tokenizer.model_sha256 if tokenizer else ""
  if not manifests:
    return RecordsSource(
      vocab_size=tokenizer.vocab_size if tokenizer else None,
      max_seq_length=max_seq_length or _DEFAULT_SEQ_LENGTH,
      max_predictions_per_seq=max_predictions_per_seq or _DEFAULT_PREDICTIONS,
      tokenizer_path=tokenizer_path,
      vocab_sha256=vocab_sha256,
      directory=directory,
      baselines={},
      settings={},
    )
  check_agreement({**manifests, **eval_manifests}, MODEL_FIELDS)
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
    directory=directory,
    baselines=_baselines(eval_manifests or manifests),
    settings={where: {**each.settings, "whole_word": each.whole_word} for where, each in manifests.items()},
  )


def _baselines(manifests: Mapping[str, Manifest]) -> dict[str, float]:
  """The share of one answer in the held-out records; of several directories only where it is the same answer in all."""
  told = [(each.baseline, each.num_records("eval")) for each in manifests.values()]
  shares = [(each.eval_share, records) for each, records in told if each and each.eval_share is not None]
  answers = {each.piece_id for each, _ in told if each}
  if len(shares) < len(told) or len(answers) != 1:
    return {}
  total = sum(records for _, records in shares)
  return {"masked_lm_accuracy": sum(share * records for share, records in shares) / total}


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def fresh_masking(settings: PretrainingSettings) -> FreshMasking | None:
  """How the training records of a run are masked anew; None where it takes the stored masks."""
  if settings.masking is None:
    return None
  tokenizer = load_tokenizer(settings.tokenizer_path)
  special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
  return FreshMasking(
    masked_lm_prob=settings.masking.masked_lm_prob,
    max_predictions_per_seq=settings.masking.max_predictions_per_seq,
    ngram_probabilities=settings.masking.ngram_probabilities,
    word_starts=tokenizer.word_starts(settings.masking.whole_word),
    cls_id=tokenizer.cls_id,
    sep_id=tokenizer.sep_id,
    mask_id=tokenizer.mask_id,
    random_ids=np.setdiff1d(np.arange(tokenizer.vocab_size), special),
    seed=settings.step.seed,
  )


@dataclasses.dataclass(frozen=True)
class PretrainingInput:
  """The records of a run as distributed datasets; `held_out` is empty where it has no held-out ones."""

  settings: PretrainingSettings
  strategy: tf.distribute.Strategy
  index: RecordIndex
  held_out: Sequence[HeldOut]
  order_version: int

  @property
  def identity(self) -> DataIdentity:
    return DataIdentity(self.index.fingerprint, self.index.content, self.order_version)

  def _parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    return parse_pretraining_batch(serialized, self.settings.spec)

  def training_iterator(self, start_position: int) -> Any:
    """Over the batches from example `start_position` on."""
    step, masking = self.settings.step, fresh_masking(self.settings)
    return iter(
      self.strategy.distribute_datasets_from_function(
        lambda context: training_batches(
          self.index,
          self._parse,
          seed=step.seed,
          global_batch_size=step.global_batch_size,
          start_position=start_position,
          shard=host_shard(self.strategy, context),
          order_version=self.order_version,
          mask=FreshMasks(masking) if masking else None,
        )
      )
    )

  def evaluator(self, model: AlbertForPreTraining) -> Evaluator | None:
    """Of the held-out records; None where the run has none. The batch must be divisible by the replicas."""
    if not self.held_out:
      return None

    def batches(context: tf.distribute.InputContext, part: HeldOut) -> tf.data.Dataset:
      return evaluation_batches(
        part.records,
        self._parse,
        global_batch_size=self.settings.eval_batch_size,
        max_steps=part.num_steps,
        shard=host_shard(self.strategy, context),
      )

    sets = [
      EvaluationSet(part.source, functools.partial(batches, part=part), part.num_steps)
      for part in self.held_out
    ]
    return Evaluator(strategy=self.strategy, model=model, sets=sets)


def checked_input(
  settings: PretrainingSettings,
  strategy: tf.distribute.Strategy,
  *,
  order_version: int,
  write: bool,
  says: bool,
) -> PretrainingInput:
  """Indexes all records and looks at the first: some of those to train on, all that an evaluation reads.

  Args:
    write: leave an index beside record files that have none; one process of a run does.
    says: tell that such files are read now, which may take long.

  Raises:
    UserError: damaged or too few records, of other lengths or another vocabulary.
  """

  def notice(text: str) -> None:
    if says:
      _say(text)

  build = functools.partial(
    build_record_index,
    on_bad_record=settings.on_bad_record,
    write=write,
    notice=notice,
  )
  check = functools.partial(
    check_records,
    spec=settings.spec,
    vocab_size=settings.model.vocab_size,
    skip_damaged=settings.on_bad_record == "skip",
  )
  index = build(settings.input_files)
  check_enough_records(index.num_records, settings.step.global_batch_size)
  check(settings.input_files)
  by_source = files_by_source(settings.eval_input_files)
  indexes = {source: build(paths) for source, paths in by_source.items()}
  batch_size = settings.eval_batch_size
  steps = share_steps(
    {source: held_out.num_records for source, held_out in indexes.items()},
    batch_size=batch_size,
    at_most=settings.max_eval_steps,
  )
  for source, paths in by_source.items():
    check(paths, at_most=steps[source] * batch_size)
  held_out = [HeldOut(source, indexes[source], steps[source]) for source in by_source]
  return PretrainingInput(settings, strategy, index, held_out, order_version)
