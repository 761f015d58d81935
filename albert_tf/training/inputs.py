"""The records of a run: checked at the start, then read as distributed datasets."""

import dataclasses
import functools
import sys
from typing import Any

import tensorflow as tf

from albert_tf.modeling import AlbertForPreTraining
from albert_tf.pipelines.checks import check_enough_records, check_records
from albert_tf.pipelines.pretraining import evaluation_batches, training_batches
from albert_tf.pipelines.record_index import DataIdentity, RecordIndex, build_record_index
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.training.distribution import host_shard
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.settings import PretrainingSettings


@dataclasses.dataclass(frozen=True)
class PretrainingInput:
  """The records of a run as distributed datasets.

  Attributes:
    settings: the run.
    strategy: places it on the replicas.
    index: of the training records.
    eval_index: of the held-out records; None without any.
    order_version: of the training data.
  """

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
    step = self.settings.step
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
        )
      )
    )

  def evaluator(self, model: AlbertForPreTraining) -> Evaluator | None:
    """Of the held-out records; None where the run has none.

    Raises:
      UserError: the evaluation batch is not divisible by the replicas.
    """
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
    settings: the run.
    strategy: places the input on the replicas.
    order_version: of the training data.
    write: leave an index beside record files that have none; one process of a run does.
    says: tell that such files are read now, which may take long.

  Raises:
    UserError: damaged or too few records, of other lengths or another vocabulary.
  """
  skips = settings.on_bad_record == "skip"
  build = functools.partial(
    build_record_index,
    on_bad_record=settings.on_bad_record,
    write=write,
    notice=_notice if says else _ignore,
  )
  index = build(settings.input_files)
  check_enough_records(index.num_records, settings.step.global_batch_size)
  check = functools.partial(
    check_records, spec=settings.spec, vocab_size=settings.model.vocab_size, skip_damaged=skips
  )
  check(settings.input_files)
  eval_index = None
  if settings.eval_input_files:
    eval_index = build(settings.eval_input_files)
    evaluated = settings.max_eval_steps * settings.eval_batch_size
    check(settings.eval_input_files, at_most=evaluated)
  return PretrainingInput(settings, strategy, index, eval_index, order_version)


def _notice(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def _ignore(text: str) -> None:
  del text
