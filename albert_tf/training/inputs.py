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
from albert_tf.records import find_manifest
from albert_tf.records.ngrams import ngram_probabilities
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.tokenization import load_tokenizer
from albert_tf.tokenization.loading import find_tokenizer
from albert_tf.training.distribution import host_shard
from albert_tf.training.evaluation import Evaluator
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
    baselines: held-out metrics of a model that ignores its input, as far as the manifest tells.
    vocab_sha256: hash of that vocabulary; empty if there is none.
    settings: how the records were made; empty if nothing tells.
    whole_word: where their words begin.
  """

  vocab_size: int | None
  max_seq_length: int
  max_predictions_per_seq: int
  tokenizer_path: str
  vocab_sha256: str
  directory: str
  baselines: Mapping[str, float]
  settings: Mapping[str, Any]
  whole_word: str = "original"

  def masking(self, masked_lm_prob: float | None) -> MaskingConfig:
    """Fresh masks by the rules of the stored ones; a share of one's own has as many predictions as it needs."""
    stored = self.settings.get("masked_lm_prob", 0.15)
    share, predictions = stored, self.max_predictions_per_seq
    if masked_lm_prob is not None and masked_lm_prob != stored:
      share, predictions = masked_lm_prob, max(1, round(masked_lm_prob * self.max_seq_length))
    ngrams = ngram_probabilities(
      self.settings.get("ngram", 3), self.settings.get("ngram_distribution", "inverse")
    )
    return MaskingConfig(
      masked_lm_prob=share,
      max_predictions_per_seq=predictions,
      ngram_probabilities=tuple(ngrams.tolist()),
      whole_word=self.whole_word,
      vocab_sha256=self.vocab_sha256,
    )

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
  """Reads the manifests beside the files and checks them against the command.

  Args:
    paths, eval_paths: training and held-out files.
    spm_model_file: the vocabulary the command names; empty for the one beside the records.
    max_seq_length, max_predictions_per_seq: what the command asks for; None takes the manifest's.

  Raises:
    UserError: command and records contradict each other, or train and held-out records do.
  """
  directory = os.path.dirname(paths[0])
  manifest = find_manifest(paths)
  tokenizer_path = spm_model_file or (directory if find_tokenizer(directory) else "")
  tokenizer = load_tokenizer(tokenizer_path) if tokenizer_path else None
  vocab_sha256 = tokenizer.model_sha256 if tokenizer else ""
  if manifest is None:
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
  manifest.check(
    vocab_sha256=vocab_sha256 or None,
    max_seq_length=max_seq_length,
    max_predictions_per_seq=max_predictions_per_seq,
    source=directory,
  )
  eval_manifest = find_manifest(eval_paths) if eval_paths else None
  if eval_manifest is not None:
    eval_manifest.check(
      vocab_sha256=manifest.vocab_sha256,
      max_seq_length=manifest.max_seq_length,
      max_predictions_per_seq=manifest.max_predictions_per_seq,
      source=os.path.dirname(eval_paths[0]),
    )
  share = manifest.baseline.eval_share if manifest.baseline else None
  return RecordsSource(
    vocab_size=manifest.vocab_size,
    max_seq_length=manifest.max_seq_length,
    max_predictions_per_seq=manifest.max_predictions_per_seq,
    tokenizer_path=tokenizer_path,
    vocab_sha256=vocab_sha256,
    directory=directory,
    baselines={} if share is None else {"masked_lm_accuracy": share},
    settings=manifest.settings,
    whole_word=manifest.whole_word,
  )


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
  """The records of a run as distributed datasets; `eval_index` is None where it has no held-out ones."""

  settings: PretrainingSettings
  strategy: tf.distribute.Strategy
  index: RecordIndex
  eval_index: RecordIndex | None
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
    settings, index = self.settings, self.eval_index
    if index is None:
      return None
    steps = min(-(-index.num_records // settings.eval_batch_size), settings.max_eval_steps)
    return Evaluator(
      strategy=self.strategy,
      model=model,
      dataset_fn=lambda context: evaluation_batches(
        index,
        self._parse,
        global_batch_size=settings.eval_batch_size,
        max_steps=steps,
        shard=host_shard(self.strategy, context),
      ),
      num_steps=steps,
    )


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
      print(text, file=sys.stderr, flush=True)

  build = functools.partial(
    build_record_index, on_bad_record=settings.on_bad_record, write=write, notice=notice
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
  eval_index = None
  if settings.eval_input_files:
    eval_index = build(settings.eval_input_files)
    check(settings.eval_input_files, at_most=settings.max_eval_steps * settings.eval_batch_size)
  return PretrainingInput(settings, strategy, index, eval_index, order_version)
