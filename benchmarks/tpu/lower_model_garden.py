"""One core's pretraining step of TF Model Garden's ALBERT as XLA's HLO, for `tpu_bound.py --hlo`; nothing is trained.

Their task with its own training step and LAMB, as `official.nlp` trains on TPUs: bfloat16 compute, no dropout. It
needs tf-models-official, and this repository on Python's path.

The program must be bfloat16, as that of this project: another package of Keras than tf-models-official's own would
leave it in float32 without a word.

Example:
  PYTHONPATH=. python benchmarks/tpu/lower_model_garden.py step.hlo base 12 512 77 8
"""

import argparse
import collections
import pathlib
import re
from typing import Any, NamedTuple

from albert_tf.configs import AlbertConfig


class _Parts(NamedTuple):
  """What Model Garden's training step takes beside a batch."""

  task: Any
  model: Any
  optimizer: Any


def main() -> None:
  parser = argparse.ArgumentParser(description="Lowers a step of TF Model Garden's ALBERT.")
  parser.add_argument("output", type=pathlib.Path, help="file for the program")
  parser.add_argument("size", help="of the model, such as base")
  parser.add_argument("layers", type=int)
  parser.add_argument("length", type=int, help="tokens of an example")
  parser.add_argument("predictions", type=int, help="masked tokens of an example")
  parser.add_argument("batch_size", type=int)
  options = parser.parse_args()

  import tf_keras

  # Before a layer is made, and in the package of Keras that tf-models-official uses.
  tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
  config = AlbertConfig.from_name(options.size, num_hidden_layers=options.layers)
  parts = _make_parts(config)
  batch = _empty_batch(options.batch_size, options.length, options.predictions)
  program = _lower(parts, batch)
  options.output.write_bytes(program)
  weights = sum(variable.shape.num_elements() for variable in parts.model.trainable_variables)
  print(f"{weights} parameters, {len(program)} bytes")


def _make_parts(config: AlbertConfig) -> _Parts:
  """Their model of the same sizes, without dropout, and their optimizer."""
  from official.modeling.optimization import lamb
  from official.nlp.configs import bert, encoders
  from official.nlp.data import pretrain_dataloader
  from official.nlp.tasks import masked_lm

  encoder = encoders.EncoderConfig(
    type="albert",
    albert={
      "vocab_size": config.vocab_size,
      "embedding_width": config.embedding_size,
      "hidden_size": config.hidden_size,
      "num_layers": config.num_hidden_layers,
      "num_attention_heads": config.num_attention_heads,
      "intermediate_size": config.intermediate_size,
      "type_vocab_size": config.type_vocab_size,
      "max_position_embeddings": config.max_position_embeddings,
      "dropout_rate": 0.0,
      "attention_dropout_rate": 0.0,
    },
  )
  sentence_head = bert.ClsHeadConfig(
    inner_dim=config.hidden_size, num_classes=2, dropout_rate=0.0, name="next_sentence"
  )
  task = masked_lm.MaskedLMTask(
    masked_lm.MaskedLMConfig(
      model=bert.PretrainerConfig(encoder=encoder, cls_heads=[sentence_head]),
      train_data=pretrain_dataloader.BertPretrainDataConfig(),
    )
  )
  optimizer = lamb.LAMB(
    learning_rate=1e-3,
    weight_decay_rate=0.01,
    exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    global_clipnorm=1.0,
  )
  return _Parts(task, task.build_model(), optimizer)


def _empty_batch(batch_size: int, length: int, predictions: int) -> dict[str, Any]:
  """Zeros of the shapes and types that their data loader makes."""
  import tensorflow as tf

  tokens = tf.zeros([batch_size, length], tf.int32)
  positions = tf.zeros([batch_size, predictions], tf.int32)
  return {
    "input_word_ids": tokens,
    "input_mask": tokens,
    "input_type_ids": tokens,
    "masked_lm_positions": positions,
    "masked_lm_ids": positions,
    "masked_lm_weights": tf.cast(positions, tf.float32),
    "next_sentence_labels": tf.zeros([batch_size], tf.int32),
  }


def _lower(parts: _Parts, batch: dict[str, Any]) -> bytes:
  """The whole training step as a serialized `HloModuleProto`."""
  import tensorflow as tf

  # Variables, those of the optimizer too, are made before the step is traced.
  parts.model(batch)
  parts.optimizer._create_all_weights(parts.model.trainable_variables)
  metrics = parts.task.build_metrics()

  @tf.function(autograph=False, jit_compile=True)
  def step(batch: dict[str, Any]) -> object:
    return parts.task.train_step(batch, parts.model, parts.optimizer, metrics)

  # Nothing runs: the whole step, forward to update, becomes one program.
  lower = step.experimental_get_compiler_ir(batch)
  types = collections.Counter(re.findall(r"= (\w+)\[[^=]* dot\(", lower(stage="hlo")))
  if set(types) != {"bf16"}:
    raise ValueError(f"Every matrix product must be bfloat16. Received: {dict(types)}.")
  return bytes(lower(stage="hlo_serialized"))


if __name__ == "__main__":
  main()
