"""Held-out sets for any trained model, and what it reaches on them, without training."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.modeling.layer_similarity import layer_similarity
from albert_tf.pipelines.batches import EXAMPLE_WEIGHTS, evaluation_batches
from albert_tf.pipelines.checks import check_records
from albert_tf.pipelines.record_index import RecordIndex, build_record_index
from albert_tf.records import Manifest, PretrainingSpec, find_manifests
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.training.distribution import host_shard
from albert_tf.training.evaluation import BatchSums, EvaluationSet, Evaluator

_DEFAULT_TASK = "sentence_order"  # Of records without a manifest: those of the original code.


class ProbeSet(NamedTuple):
  """Held-out records that a model is judged on.

  Attributes:
    name: in reports.
    records: where they lie.
    spec: their lengths.
    sentence_task: what their labels say, as in `Manifest`.
  """

  name: str
  records: RecordIndex
  spec: PretrainingSpec
  sentence_task: str


def read_probe_set(
  name: str,
  paths: Sequence[str],
  *,
  vocab_size: int,
  vocab_sha256: str,
  max_position_embeddings: int,
  spec: PretrainingSpec,
) -> ProbeSet:
  """Looks at the records of one set; refuses only what this model cannot read.

  Lengths, task and text may be others than those of the records it was trained on: to compare them is the purpose.

  Args:
    name: of the set.
    paths: its files.
    vocab_size, vocab_sha256, max_position_embeddings: of the model; an empty hash is not compared.
    spec: lengths of records that no manifest describes.

  Raises:
    UserError: another vocabulary, longer records than the model has positions, or damage in the first records.
  """
  manifests = find_manifests(paths)
  manifest: Manifest | None = next(iter(manifests.values()), None)
  where = f"the set {name}"
  if manifest is not None:
    manifest.check(vocab_size=vocab_size, vocab_sha256=vocab_sha256 or None, source=where)
    spec = manifest.spec
  if spec.max_seq_length > max_position_embeddings:
    raise UserError(
      "A record must not be longer than the model has positions. Received: "
      f"max_seq_length={spec.max_seq_length} in {where}, max_position_embeddings={max_position_embeddings}. "
      "Make this set with a shorter --max_seq_length."
    )
  records = build_record_index(paths, write=False)
  check_records(paths, spec=spec, vocab_size=vocab_size)
  return ProbeSet(name, records, spec, manifest.sentence_task if manifest else _DEFAULT_TASK)


def evaluate_sets(
  model: AlbertForPreTraining,
  sets: Sequence[ProbeSet],
  *,
  strategy: tf.distribute.Strategy,
  batch_size: int,
  max_steps: int | None = None,
  has_sentence_head: bool = True,
  with_layer_similarity: bool = False,
  use_xla: bool = False,
) -> dict[str, dict[str, Any]]:
  """What a model reaches on each set.

  Args:
    model: made under the strategy's scope, with its weights.
    sets: with different names.
    batch_size: examples of one batch, over all replicas.
    max_steps: at most this many batches of each set; None for all.
    has_sentence_head: whether the model has learned a sentence task; without, no sentence metric is given.
    with_layer_similarity: also the mean L2 distance and angle between each layer's input and output, which
      needs an encoder that puts out all layers.
    use_xla: see `BatchSums`.

  Returns:
    Name → `masked_lm_accuracy`, `masked_lm_loss`, accuracy and loss of the set's sentence task where it has one
    (`sentence_order_…` or `next_sentence_…`), `num_examples`, `record_content` (a hash of the records), and
    `layer_similarity` with `l2` and `degrees`, a number a layer.
  """
  steps = {each.name: _num_steps(each.records, batch_size, max_steps) for each in sets}
  evaluation_sets = [
    EvaluationSet(
      each.name,
      functools.partial(
        _batches, strategy=strategy, probe=each, batch_size=batch_size, num_steps=steps[each.name]
      ),
      steps[each.name],
    )
    for each in sets
  ]
  found = Evaluator(strategy=strategy, model=model, sets=evaluation_sets, use_xla=use_xla)()
  results = {
    each.name: {
      **_metrics(found, each, has_sentence_head=has_sentence_head),
      "num_examples": min(each.records.num_records, steps[each.name] * batch_size),
      "record_content": each.records.content,
    }
    for each in sets
  }
  if with_layer_similarity:
    for name, value in _layer_similarities(model, evaluation_sets, strategy, use_xla=use_xla).items():
      results[name]["layer_similarity"] = value
  return results


def _num_steps(records: RecordIndex, batch_size: int, at_most: int | None) -> int:
  steps = -(-records.num_records // batch_size)
  return steps if at_most is None else min(steps, at_most)


def _batches(
  context: tf.distribute.InputContext,
  *,
  strategy: tf.distribute.Strategy,
  probe: ProbeSet,
  batch_size: int,
  num_steps: int,
) -> tf.data.Dataset:
  return evaluation_batches(
    probe.records,
    lambda serialized: parse_pretraining_batch(serialized, probe.spec),
    global_batch_size=batch_size,
    max_steps=num_steps,
    shard=host_shard(strategy, context),
  )


def _metrics(found: Mapping[str, float], probe: ProbeSet, *, has_sentence_head: bool) -> dict[str, float]:
  """Those of one set, by the names of its own task."""
  names = {name: name for name in ("masked_lm_accuracy", "masked_lm_loss")}
  if probe.sentence_task and has_sentence_head:
    names |= {f"{probe.sentence_task}_{kind}": f"sentence_order_{kind}" for kind in ("accuracy", "loss")}
  return {name: found[f"{source}/{probe.name}"] for name, source in names.items()}


def _layer_similarities(
  model: AlbertForPreTraining,
  sets: Sequence[EvaluationSet],
  strategy: tf.distribute.Strategy,
  *,
  use_xla: bool,
) -> dict[str, dict[str, list[float]]]:
  """Set → `l2` and `degrees` of each layer, means over all real positions."""
  encoder = model.encoder
  num_layers = encoder.config.num_hidden_layers * encoder.config.inner_group_num

  def sums(batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    outputs = encoder({name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")})
    x = tf.stack([outputs["encoder_input"], *outputs["all_encoder_layers"]])  # [1 + L, B, S, H]
    mask = tf.cast(batch["input_mask"], tf.float32) * batch[EXAMPLE_WEIGHTS][:, tf.newaxis]
    count = tf.reduce_sum(mask)
    similarity = layer_similarity(x[:-1], x[1:], mask)
    return tf.concat([similarity.l2 * count, similarity.degrees * count, [count]], axis=0)

  totals = BatchSums(strategy=strategy, sets=sets, sums=sums, size=2 * num_layers + 1, use_xla=use_xla)()
  found = {}
  for name, total in totals.items():
    l2, degrees = np.split(total[:-1] / max(total[-1], 1.0), 2)
    found[name] = {"l2": l2.tolist(), "degrees": degrees.tolist()}
  return found
