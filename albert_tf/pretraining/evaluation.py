"""Evaluation on held-out sets, on all replicas, during a run and of finished runs."""

from collections.abc import Iterator, Mapping, Sequence
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import Checkpoint, load_weights
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.modeling.layer_similarity import layer_similarity
from albert_tf.modeling.losses import NUM_SUMS, PretrainingSums, cross_entropy_sums, mean_metrics
from albert_tf.pipelines.batches import (
  EXAMPLE_WEIGHTS,
  Batch,
  evaluation_batches,
  iterators_without_autotune,
)
from albert_tf.pipelines.record_index import (
  READ_ERRORS,
  RecordIndex,
  build_record_index,
  check_range,
  check_records,
)
from albert_tf.pretraining.watch import NonFiniteError
from albert_tf.records import PretrainingSpec, RecordRules, find_manifests
from albert_tf.records.parse import parse_pretraining_batch, spec_of_records
from albert_tf.runs.distribution import host_shard, precision_policy

# Only the sentence task needs these variables; some masked-LM models do not have them.
_SENTENCE_VARIABLES = ("bert/pooler/dense/kernel", "cls/seq_relationship/output_weights")
_MAY_BE_MISSING = "^(bert/pooler|cls/seq_relationship)/"


class HeldOut(NamedTuple):
  """Held-out records that a model is evaluated on.

  Attributes:
    records, rules: the records, and what the model expects of them.
    sentence_task: meaning of their labels, see `StepConfig`; empty: sentences are not evaluated.
    batch_size: examples of a batch on all replicas together.
    num_steps: number of batches to evaluate at most.
  """

  records: RecordIndex
  rules: RecordRules
  sentence_task: str
  batch_size: int
  num_steps: int

  @property
  def num_examples(self) -> int:
    """Number of records that are evaluated."""
    return min(self.records.num_records, self.num_steps * self.batch_size)


def read_held_out(
  paths: Sequence[str],
  *,
  rules: RecordRules,
  sentence_task: str,
  batch_size: int,
  max_steps: int | None = None,
) -> HeldOut:
  """Indexes a held-out set and checks its records: all, or those of `max_steps` batches.

  Raises:
    UserError: there are no records, or a record is damaged or has another vocabulary or length.
  """
  records = build_record_index(paths)
  # The last batch is filled up with rows of weight 0.
  num_steps = math.ceil(records.num_records / batch_size)
  if max_steps is not None:
    num_steps = min(num_steps, max_steps)
  check_records(paths, rules, at_most=num_steps * batch_size)
  return HeldOut(records, rules, sentence_task, batch_size, num_steps)


class Evaluator:
  """Computes masked-LM and sentence loss and accuracy over held-out sets, all by one program.

  Args:
    strategy: of the model.
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
    self._with_layers = with_layers
    # A data set can be iterated again at every evaluation, from its start.
    self._datasets = {}
    for name, held_out in sets.items():
      self._datasets[name] = strategy.distribute_datasets_from_function(
        functools.partial(self._batches_of_host, held_out)
      )
    self._local_sums = tf.function(
      self._compute_sums,
      autograph=False,
      jit_compile=use_xla or None,  # None leaves a TPU its choice.
    )
    # Only `_sum_all` needs AutoGraph.
    self._on_replica = tf.autograph.experimental.do_not_convert(self._global_sums)
    self.run = tf.function(self._sum_all)

  def __call__(self, num_steps: int | None = None) -> dict[str, dict[str, Any]]:
    """Evaluates the current weights, on the first `num_steps` batches of each set if given.

    Returns:
      Name → metrics by the names of metrics.jsonl; with layers also `layer_similarity`: the mean L2
      distance `l2` and angle `degrees` of each.

    Raises:
      NonFiniteError: the weights give a loss that is not finite.
      UserError: a record was damaged, or its file changed, since the check at the start.
    """
    metrics: dict[str, dict[str, Any]] = {}
    for name, held_out in self._sets.items():
      num_batches = tf.constant(num_steps or held_out.num_steps)
      with iterators_without_autotune():
        batches = iter(self._datasets[name])
      try:
        sums = self.run(batches, num_batches).numpy().astype(np.float64)
      except READ_ERRORS:
        check_range(held_out.records, 0, held_out.num_examples, held_out.rules)
        raise  # No record is damaged.
      losses, layers = np.split(sums, [NUM_SUMS])
      metrics[name] = mean_metrics(PretrainingSums.unpack(losses), held_out.sentence_task)
      if not math.isfinite(metrics[name]["loss"]):
        raise NonFiniteError(
          f"Losses must stay finite. Received: loss={metrics[name]['loss']} of the held-out set "
          f"{name}, whose records are sound. The weights give such values: take an earlier "
          "checkpoint, or --mixed_precision=float32 if it was bfloat16."
        )
      if self._with_layers:
        metrics[name]["layer_similarity"] = _layer_means(layers)
    return metrics

  def _batches_of_host(
    self, held_out: HeldOut, context: tf.distribute.InputContext
  ) -> tf.data.Dataset:
    return evaluation_batches(
      held_out.records,
      functools.partial(parse_pretraining_batch, rules=held_out.rules),
      global_batch_size=held_out.batch_size,
      num_steps=held_out.num_steps,
      shard=host_shard(self._strategy, context),
    )

  def _sum_all(self, iterator: Iterator[Batch], num_steps: tf.Tensor) -> tf.Tensor:
    """The sums of `num_steps` batches, without returning to the host in between."""
    num_sums = NUM_SUMS
    if self._with_layers:
      num_sums += 2 * len(self._model.encoder.blocks) + 1  # As `_layer_sums` returns.
    sums = tf.zeros([num_sums])
    for _ in tf.range(num_steps):
      per_replica = self._strategy.run(self._on_replica, args=(next(iterator),))
      sums += self._strategy.experimental_local_results(per_replica)[0]
    return sums

  def _global_sums(self, batch: Batch) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, self._local_sums(batch))

  def _compute_sums(self, batch: Batch) -> tf.Tensor:
    """The sums of this replica's rows: `PretrainingSums.pack`, and with layers `_layer_sums`."""
    outputs = self._model(batch, training=False)
    # Rows that only fill the last batch have the weight 0.
    row_weights = batch[EXAMPLE_WEIGHTS]
    masked_lm = cross_entropy_sums(
      outputs["mlm_logits"],
      batch["masked_lm_ids"],
      batch["masked_lm_weights"] * row_weights[:, tf.newaxis],
    )
    sentence = cross_entropy_sums(
      outputs["sop_logits"], batch["sentence_order_labels"], row_weights
    )
    sums = PretrainingSums(masked_lm, sentence).pack()
    if self._with_layers:
      sums = tf.concat([sums, self._layer_sums(batch)], axis=0)
    return sums

  def _layer_sums(self, batch: Batch) -> tf.Tensor:
    """float32 `[2 L + 1]`: each layer's L2 distances and angles; last the number of positions.

    They are sums over all real positions.
    """
    text = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = self._model.encoder(text)
    # Input of the first layer, then the output of each.
    x = tf.stack((outputs["encoder_input"],) + outputs["all_encoder_layers"])  # [1 + L, B, S, H]
    mask = tf.cast(batch["input_mask"], tf.float32) * batch[EXAMPLE_WEIGHTS][:, tf.newaxis]
    l2, degrees = layer_similarity(x[:-1], x[1:], mask)
    return tf.concat([l2, degrees, [tf.reduce_sum(mask)]], axis=0)


def _layer_means(layer_sums: np.ndarray) -> dict[str, list[float]]:
  """The means over all positions, of what `Evaluator._layer_sums` summed over the batches."""
  num_positions = max(layer_sums[-1], 1.0)
  l2, degrees = np.split(layer_sums[:-1] / num_positions, 2)
  return {"l2": l2.tolist(), "degrees": degrees.tolist()}


def evaluate_checkpoint(
  checkpoint: Checkpoint,
  files: Mapping[str, Sequence[str]],
  *,
  strategy: tf.distribute.Strategy,
  batch_size: int,
  max_steps: int | None = None,
  precision: str = "float32",
  with_layers: bool = False,
  use_xla: bool = False,
) -> dict[str, dict[str, Any]]:
  """Evaluates a trained model on sets of any length and sentence task.

  Args:
    files: name → record files.
    max_steps: at most this many batches of each set; None for all.
    precision: see `precision_policy`.
    with_layers, use_xla: see `Evaluator`.

  Returns:
    Name → losses and accuracies, `num_examples`, and `record_content`, a hash of the records. The
    sentence metrics have the name of the set's task; a model without a trained sentence head has
    none.
  """
  sets = {}
  for name, paths in files.items():
    spec, sentence_task = _describe_set(name, paths, checkpoint)
    sets[name] = read_held_out(
      paths,
      rules=RecordRules(
        spec,
        vocab_size=checkpoint.config.vocab_size,
        type_vocab_size=checkpoint.config.type_vocab_size,
      ),
      sentence_task=sentence_task,
      batch_size=batch_size,
      max_steps=max_steps,
    )
  with strategy.scope():
    model = AlbertForPreTraining(
      checkpoint.config, read_positions_only=True, dtype=precision_policy(precision)
    )
  # A masked-LM model without pooler and sentence head keeps random ones, which nothing reads.
  load_weights(model, checkpoint, allow_missing=_MAY_BE_MISSING)
  evaluator = Evaluator(
    strategy=strategy, model=model, sets=sets, with_layers=with_layers, use_xla=use_xla
  )
  results = evaluator()
  for name, metrics in results.items():
    del metrics["loss"]  # Not comparable between sentence tasks.
    metrics["num_examples"] = sets[name].num_examples
    metrics["record_content"] = sets[name].records.content
  return results


def _describe_set(
  name: str, paths: Sequence[str], checkpoint: Checkpoint
) -> tuple[PretrainingSpec, str]:
  """Lengths and sentence task of a set, checked against the model."""
  config = checkpoint.config
  sentence_task = "sentence_order"  # Of records of the original code, which have no manifest.
  manifests = list(find_manifests(paths).values())
  if manifests:
    manifest = manifests[0]  # They agree.
    vocab_sha256 = None
    if checkpoint.tokenizer is not None:
      vocab_sha256 = checkpoint.load_tokenizer().model_sha256
    manifest.check(
      vocab_size=config.vocab_size,
      vocab_sha256=vocab_sha256,
      source=f"the set {name}",
    )
    spec = manifest.spec
    sentence_task = manifest.sentence_task
  else:
    spec = spec_of_records(paths)
  if not _has_sentence_head(checkpoint):
    sentence_task = ""
  config.check_length(spec.max_seq_length, f"the set {name}")
  return spec, sentence_task


def _has_sentence_head(checkpoint: Checkpoint) -> bool:
  """Whether the checkpoint has a trained sentence head; an untrained one has no moments."""
  trained = set(checkpoint.variables)
  with_moments = {
    name.removesuffix("/adam_m") for name in checkpoint.slots if name.endswith("/adam_m")
  }
  if with_moments:  # Not a checkpoint of weights alone.
    trained &= with_moments
  return trained.issuperset(_SENTENCE_VARIABLES)
