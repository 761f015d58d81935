"""The records of a run, checked at the start and read as distributed datasets."""

from collections.abc import Sequence
import dataclasses
import functools
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.modeling import AlbertForPreTraining
from albert_tf.pipelines.batches import evaluation_batches, training_batches
from albert_tf.pipelines.checks import check_enough_records, check_records
from albert_tf.pipelines.fresh_masks import FreshMasking, FreshMasks
from albert_tf.pipelines.record_index import DataIdentity, RecordIndex, build_record_index
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.tokenization import load_tokenizer
from albert_tf.training.distribution import host_shard
from albert_tf.training.evaluation import EvaluationSet, Evaluator
from albert_tf.training.held_out import HeldOut, files_by_source, share_steps
from albert_tf.training.settings import PretrainingSettings


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
    redraw_order=settings.masking.redraw_order,
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
    task = self.settings.step.sentence_task
    return Evaluator(strategy=self.strategy, model=model, sets=sets, sentence_task=task)


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
