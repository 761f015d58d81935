"""One core's pretraining step of TF Model Garden's ALBERT as XLA's HLO, for `tpu_bound.py --hlo`; nothing is trained.

Their task with its own training step and LAMB, as `official.nlp` trains on TPUs: bfloat16 compute, no dropout.

The program must be bfloat16, as that of this project: another package of Keras than tf-models-official's own would
leave it in float32 without a word.

python benchmarks/tpu/lower_model_garden.py OUTPUT SIZE LAYERS LENGTH PREDICTIONS BATCH
"""

import collections
import re
import sys

from official.modeling.optimization import lamb
from official.nlp.configs import bert, encoders
from official.nlp.data import pretrain_dataloader
from official.nlp.tasks import masked_lm
import tensorflow as tf
import tf_keras

output, size = sys.argv[1:3]
layers, length, predictions, batch_size = map(int, sys.argv[3:])
widths = {"base": (768, 12), "large": (1024, 16), "xlarge": (2048, 16), "xxlarge": (4096, 64)}
hidden_size, heads = widths[size]
tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
albert: dict[str, float] = {"vocab_size": 30000, "embedding_width": 128, "hidden_size": hidden_size}
albert |= {"num_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * hidden_size}
albert |= {"type_vocab_size": 2, "max_position_embeddings": 512}
albert |= {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
head = {"inner_dim": hidden_size, "num_classes": 2, "dropout_rate": 0.0, "name": "next_sentence"}
config = masked_lm.MaskedLMConfig(
  model=bert.PretrainerConfig(
    encoder=encoders.EncoderConfig(type="albert", albert=albert),
    cls_heads=[bert.ClsHeadConfig(**head)],
  ),
  train_data=pretrain_dataloader.BertPretrainDataConfig(),
)
task = masked_lm.MaskedLMTask(config)
model = task.build_model()
optimizer = lamb.LAMB(
  learning_rate=1e-3,
  weight_decay_rate=0.01,
  exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
  global_clipnorm=1.0,
)
ids, positions = (
  tf.zeros([batch_size, length], tf.int32),
  tf.zeros([batch_size, predictions], tf.int32),
)
batch = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), ids)
batch |= {"masked_lm_positions": positions, "masked_lm_ids": positions}
batch |= {
  "masked_lm_weights": tf.cast(positions, tf.float32),
  "next_sentence_labels": tf.zeros([batch_size], tf.int32),
}
model(batch)
optimizer._create_all_weights(model.trainable_variables)
metrics = task.build_metrics()


@tf.function(autograph=False, jit_compile=True)
def step(batch: dict[str, tf.Tensor]) -> object:
  return task.train_step(batch, model, optimizer, metrics)


ir = step.experimental_get_compiler_ir(batch)
products = collections.Counter(re.findall(r"= (\w+)\[[^=]* dot\(", ir(stage="hlo")))
assert set(products) == {"bf16"}, f"Every product must be bfloat16. Received: {products}"
hlo = ir(stage="hlo_serialized")
with open(output, "wb") as file:
  file.write(hlo)
weights = sum(variable.shape.num_elements() for variable in model.trainable_variables)
print(f"{weights} parameters, {len(hlo)} bytes, {products.total()} products in bfloat16")
