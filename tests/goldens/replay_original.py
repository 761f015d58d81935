"""Runs google-research/albert on the recorded inputs, and compares with what is recorded here.

For those who do not want to trust the recordings. It needs the original's code, and nothing of this
project but this folder; hence the old Python and TensorFlow. docs/proof.md has the commands.

It covers the model, both losses, all gradients, ten LAMB steps in both forms of the word look-up,
and SentencePiece ids. It prints the largest difference of each, relative to the largest number.
"""

import gzip
import json
import os
import sys

from albert import modeling, optimization, run_pretraining, tokenization
import numpy as np
import tensorflow.compat.v1 as tf

HERE = os.path.dirname(os.path.abspath(__file__))
TOLERANCE = 1e-5


def recorded(name):
  """Name → recorded array; of a long one every few elements, with the step after an `@`."""
  with np.load(os.path.join(HERE, name + ".npz")) as stored:
    return {key: stored[key] for key in stored.files}


def checkpoint(name):
  """Name → array of a recorded checkpoint. Tensors that it shares with `tiny` are stored there."""
  reader = tf.train.load_checkpoint(os.path.join(HERE, "ckpt_tiny/model.ckpt-best"))
  tiny = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
  if name == "tiny":
    return tiny
  stored = recorded("checkpoints")
  tensors = {key: tiny[key] for key in stored[name + "@same"]}
  for key, array in stored.items():
    if key.startswith(name + "/"):
      tensors[key[len(name) + 1 :]] = array
  return tensors


def difference(records, name, actual):
  """The largest difference of `actual` from the array recorded under `name`, relative to its largest number."""
  for key, expected in records.items():
    base, _, step = key.partition("@")
    if base == name:
      actual = np.asarray(actual, np.float64).reshape(-1)[:: int(step or 1)]
      expected = np.asarray(expected, np.float64).reshape(-1)
      return np.max(np.abs(actual - expected)) / max(1.0, np.max(np.abs(expected)))
  raise KeyError(name)


def build(config_name, batch, one_hot=False):
  """The original's pretraining model on a recorded batch, and its losses, by the names of the records."""
  config = modeling.AlbertConfig.from_json_file(os.path.join(HERE, config_name))
  inputs = {name: tf.constant(array) for name, array in batch.items()}
  model = modeling.AlbertModel(
    config=config,
    is_training=True,  # Its dropout rates are 0.
    input_ids=inputs["input_ids"],
    input_mask=inputs["input_mask"],
    token_type_ids=inputs["segment_ids"],
    use_one_hot_embeddings=one_hot,
  )
  masked_lm = run_pretraining.get_masked_lm_output(
    config,
    model.get_sequence_output(),
    model.get_embedding_table(),
    inputs["masked_lm_positions"],
    inputs["masked_lm_ids"],
    inputs["masked_lm_weights"],
  )
  sentence_order = run_pretraining.get_sentence_order_output(
    config, model.get_pooled_output(), inputs["next_sentence_labels"]
  )
  return {
    "embedding_output": model.get_embedding_output(),
    "all_encoder_layers": tf.stack(model.get_all_encoder_layers()),
    "sequence_output": model.get_sequence_output(),
    "pooled_output": model.get_pooled_output(),
    "masked_lm_loss": masked_lm[0],
    "masked_lm_example_loss": masked_lm[1],
    "sentence_order_loss": sentence_order[0],
    "sentence_order_example_loss": sentence_order[1],
    "sentence_order_log_probs": sentence_order[2],
    "total_loss": masked_lm[0] + sentence_order[0],
  }


def start(session, tensors):
  """Initializes all variables, those of the checkpoint with its tensors."""
  session.run(tf.global_variables_initializer())
  for variable in tf.trainable_variables():
    variable.load(tensors[variable.op.name], session)


def replay_model(name, config_name):
  """Outputs, losses and gradients of a recorded model."""
  records = recorded(name)
  batch = {key[3:]: array for key, array in records.items() if key.startswith("in/")}
  with tf.Graph().as_default(), tf.Session() as session:
    wanted = build(config_name, batch)
    variables = tf.trainable_variables()
    for variable, gradient in zip(variables, tf.gradients(wanted["total_loss"], variables)):
      wanted["grad/" + variable.op.name] = tf.convert_to_tensor(gradient)
    start(session, checkpoint(name))
    found = session.run(wanted)
  worst = {"outputs and losses": 0.0, "gradients": 0.0}
  for key, array in found.items():
    kind = "gradients" if key.startswith("grad/") else "outputs and losses"
    worst[kind] = max(worst[kind], difference(records, key, array))
  return {f"{name}, {kind}": value for kind, value in worst.items()}


def replay_lamb(form):
  """Losses before each of ten LAMB steps, and the weights after them."""
  records = recorded("lamb")
  batch = {key[3:]: array for key, array in records.items() if key.startswith("in/")}
  losses = ("total_loss", "masked_lm_loss", "sentence_order_loss")
  with tf.Graph().as_default(), tf.Session() as session:
    wanted = build("ckpt_tiny/albert_config.json", batch, one_hot=form == "onehot")
    step = optimization.create_optimizer(
      wanted["total_loss"],
      float(records["hyper/lr"]),
      int(records["hyper/total"]),
      int(records["hyper/warm"]),
      use_tpu=False,
      optimizer="lamb",
      poly_power=float(records["hyper/power"]),
      start_warmup_step=int(records["hyper/start"]),
    )
    start(session, checkpoint("tiny"))
    before = []
    for _ in range(int(records["hyper/steps"])):
      before.append(session.run([wanted[name] for name in losses]))
      session.run(step)
    weights = {variable.op.name: variable for variable in tf.trainable_variables()}
    weights = session.run(weights)
  worst = {"losses": 0.0, "weights": 0.0}
  for name, values in zip(losses, zip(*before)):
    found = difference(records, f"{form}/{name}", values)
    worst["losses"] = max(worst["losses"], found)
  if form == "gather":
    del worst["weights"]  # Recorded for the other form.
    weights = {}
  for name, value in weights.items():
    found = difference(records, f"{form}/after_10/{name}", value)
    worst["weights"] = max(worst["weights"], found)
  return {f"ten LAMB steps, {form}, {kind}": value for kind, value in worst.items()}


def replay_tokenizer():
  """The share of recorded texts whose SentencePiece ids are not those recorded."""
  tokenizer = tokenization.FullTokenizer(
    vocab_file=None, spm_model_file=os.path.join(HERE, "spm8k.model")
  )
  with gzip.open(os.path.join(HERE, "tokenization.json.gz"), "rt", encoding="utf-8") as file:
    rows = json.load(file)["sentencepiece"]
  wrong = 0
  for row in rows:
    text = tokenization.preprocess_text(row["text"], lower=row["lower"])
    ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
    wrong += ids != row["ids_nostrip"]
  return {"SentencePiece ids, texts that differ": wrong / float(len(rows))}


def main():
  results = replay_tokenizer()
  results.update(replay_model("tiny", "ckpt_tiny/albert_config.json"))
  results.update(replay_model("tiny_groups", "tiny_groups_config.json"))
  results.update(replay_lamb("gather"))
  results.update(replay_lamb("onehot"))
  for name, value in results.items():
    print(f"{name:44} {value:.1e}")
  if max(results.values()) > TOLERANCE:
    sys.exit(f"The records differ from the original by more than {TOLERANCE:g}.")


if __name__ == "__main__":
  main()
