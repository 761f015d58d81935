"""Evaluation on held-out sets, on all replicas, during a run and of finished runs."""

from collections.abc import Iterator, Mapping, Sequence
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import Checkpoint, load_weights
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.modeling.layer_similarity import layer_similarity
from albert_tf.modeling.losses import LossSums, cross_entropy_sums, mean_metrics
from albert_tf.pipelines.batches import EXAMPLE_WEIGHTS, evaluation_batches, iterators_without_autotune
from albert_tf.pipelines.record_index import RecordIndex, build_record_index, check_records
from albert_tf.records import PretrainingSpec, find_manifests
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.training.distribution import host_shard, precision_policy

_NUM_SUMS = 6  # Of the losses; those of the layers follow.
# Only the sentence task needs these; some masked-LM models do not have them.
_SENTENCE_VARIABLES = ("bert/pooler/dense/kernel", "cls/seq_relationship/output_weights")
_MAY_BE_MISSING = "^(bert/pooler|cls/seq_relationship)/"


class HeldOut(NamedTuple):
  """Held-out records that a model is evaluated on, in batches of `batch_size` on all replicas, at most `num_steps`.

  `sentence_task` is the meaning of their labels, see `StepConfig`; if empty, sentences are not evaluated.
  """

  records: RecordIndex
  spec: PretrainingSpec
  sentence_task: str
  batch_size: int
  num_steps: int


def read_held_out(
  paths: Sequence[str],
  *,
  spec: PretrainingSpec,
  sentence_task: str,
  vocab_size: int,
  batch_size: int,
  max_steps: int | None = None,
) -> HeldOut:
  """Indexes a held-out set and checks its records: all, or those of `max_steps` batches.

  Raises:
    UserError: there are no records, or a record is damaged or has another vocabulary or length.
  """
  records = build_record_index(paths)
  num_steps = min(-(-records.num_records // batch_size), max_steps or records.num_records)
  check_records(paths, spec=spec, vocab_size=vocab_size, at_most=num_steps * batch_size)
  return HeldOut(records, spec, sentence_task, batch_size, num_steps)


class Evaluator:
  """Computes masked-LM and sentence loss and accuracy over held-out sets, all with the same program.

  Args:
    model: made under the strategy's scope.
    sets: name → set.
    with_layers: also compare input and output of each layer; the encoder must output all layers.
    use_xla: compile for GPU and CPU; a TPU does so anyway.
  """

  def __init__(
    self,
    *,
    strategy: tf.distribute.Strategy,
    model: AlbertForPreTraining,
    sets: Mapping[str, HeldOut],
    with_layers: bool = False,
    use_xla: bool = False,
  ):
    self._strategy = strategy
    self._model = model
    self._sets = sets
    config = model.encoder.config
    self._num_layers = config.num_hidden_layers * config.inner_group_num if with_layers else 0
    self._datasets = {
      name: strategy.distribute_datasets_from_function(functools.partial(self._batches, held_out))
      for name, held_out in sets.items()
    }
    sums: Any = self._replica_sums
    local = tf.function(sums, autograph=False, jit_compile=True) if use_xla else sums
    self._on_replica = tf.autograph.experimental.do_not_convert(
      lambda batch: tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, local(dict(batch))
      )
    )
    self.run = tf.function(self._sum_all)

  def __call__(self, num_steps: int | None = None) -> dict[str, dict[str, Any]]:
    """Evaluates the current weights, on the first `num_steps` batches of each set if given.

    Returns:
      Name → metrics by the names of metrics.jsonl; with layers also `layer_similarity`: the mean L2 distance `l2` and
      angle `degrees` of each.
    """
    found: dict[str, dict[str, Any]] = {}
    zeros = tf.zeros([_NUM_SUMS + (2 * self._num_layers + 1 if self._num_layers else 0)])
    for name, held_out in self._sets.items():
      num_batches = tf.constant(num_steps or held_out.num_steps)
      with iterators_without_autotune():
        batches = iter(self._datasets[name])
      sums = self.run(batches, num_batches, zeros).numpy().astype(np.float64)
      losses, layers = np.split(sums, [_NUM_SUMS])
      found[name] = mean_metrics(LossSums(*losses[:3]), LossSums(*losses[3:]), held_out.sentence_task)
      if self._num_layers:
        l2, degrees = np.split(layers[:-1] / max(layers[-1], 1.0), 2)
        found[name]["layer_similarity"] = {"l2": l2.tolist(), "degrees": degrees.tolist()}
    return found

  def _batches(self, held_out: HeldOut, context: tf.distribute.InputContext) -> tf.data.Dataset:
    return evaluation_batches(
      held_out.records,
      functools.partial(parse_pretraining_batch, spec=held_out.spec),
      global_batch_size=held_out.batch_size,
      max_steps=held_out.num_steps,
      shard=host_shard(self._strategy, context),
    )

  def _sum_all(
    self, iterator: Iterator[Mapping[str, tf.Tensor]], num_steps: tf.Tensor, sums: tf.Tensor
  ) -> tf.Tensor:
    for _ in tf.range(num_steps):
      per_replica = self._strategy.run(self._on_replica, args=(next(iterator),))
      sums += self._strategy.experimental_local_results(per_replica)[0]
    return sums

  def _replica_sums(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    outputs = self._model(batch, training=False)
    weights = batch[EXAMPLE_WEIGHTS]
    masked_lm = cross_entropy_sums(
      outputs["mlm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"] * weights[:, tf.newaxis]
    )
    sentence = cross_entropy_sums(outputs["sop_logits"], batch["sentence_order_labels"], weights)
    sums = tf.stack([*masked_lm, *sentence])
    return tf.concat([sums, self._layer_sums(batch)], axis=0) if self._num_layers else sums

  def _layer_sums(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """float32 `[2 L + 1]`: of each layer the L2 distances and the angles over all real positions, and their number."""
    outputs = self._model.encoder({name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")})
    x = tf.stack([outputs["encoder_input"], *outputs["all_encoder_layers"]])  # [1 + L, B, S, H]
    mask = tf.cast(batch["input_mask"], tf.float32) * batch[EXAMPLE_WEIGHTS][:, tf.newaxis]
    return tf.concat([*layer_similarity(x[:-1], x[1:], mask), [tf.reduce_sum(mask)]], axis=0)


def evaluate_checkpoint(
  checkpoint: Checkpoint,
  files: Mapping[str, Sequence[str]],
  *,
  strategy: tf.distribute.Strategy,
  spec: PretrainingSpec,
  batch_size: int,
  max_steps: int | None = None,
  precision: str = "float32",
  with_layers: bool = False,
  use_xla: bool = False,
) -> dict[str, dict[str, Any]]:
  """Evaluates a trained model on sets of any length and sentence task.

  Args:
    files: name → record files.
    spec: lengths of records that no manifest describes.
    max_steps: at most this many batches of each set; None for all.
    precision: see `precision_policy`.
    with_layers, use_xla: see `Evaluator`.

  Returns:
    Name → losses and accuracies, `num_examples`, and `record_content`, a hash of the records. The sentence metrics
    have the name of the set's task; a model without a trained sentence head has none.
  """
  config = checkpoint.config
  vocab_sha256 = checkpoint.load_tokenizer().model_sha256 if checkpoint.tokenizer else None
  sets = {}
  for name, paths in files.items():
    manifest = next(iter(find_manifests(paths).values()), None)
    if manifest is not None:
      manifest.check(vocab_size=config.vocab_size, vocab_sha256=vocab_sha256, source=f"the set {name}")
    of_set = manifest.spec if manifest else spec
    config.check_length(of_set.max_seq_length, f"the set {name}")
    task = manifest.sentence_task if manifest else "sentence_order"  # Of records of the original code.
    sets[name] = read_held_out(
      paths,
      spec=of_set,
      sentence_task=task if _has_sentence_head(checkpoint) else "",
      vocab_size=config.vocab_size,
      batch_size=batch_size,
      max_steps=max_steps,
    )
  with strategy.scope():
    model = AlbertForPreTraining(config, read_positions_only=True, dtype=precision_policy(precision))
  load_weights(model, checkpoint, allow_missing=_MAY_BE_MISSING)
  evaluator = Evaluator(strategy=strategy, model=model, sets=sets, with_layers=with_layers, use_xla=use_xla)
  results = evaluator()
  for name, of_set_results in results.items():
    of_set_results.pop("loss")  # Not comparable between sentence tasks.
    records, read = sets[name].records, sets[name].num_steps * batch_size
    of_set_results["num_examples"] = min(records.num_records, read)
    of_set_results["record_content"] = records.content
  return results


def _has_sentence_head(checkpoint: Checkpoint) -> bool:
  """Whether the checkpoint has a trained sentence head; an untrained head of a run has no moments."""
  moments = {name.removesuffix("/adam_m") for name in checkpoint.slots if name.endswith("/adam_m")}
  return set(_SENTENCE_VARIABLES) <= checkpoint.variables.keys() & (moments or checkpoint.variables.keys())
