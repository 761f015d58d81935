"""A training step of ALBERT here and in other packages: same size, batch, length and machine, in one run.

Prints one JSON line. The claim: a step of the base model on CPU in float32 is faster than Hugging Face's (PyTorch,
and TensorFlow where its package still has it) and Keras Hub's. Packages that are not installed are named and left out.

  --task=pretraining: masked LM as each package offers it (Hugging Face's computes logits at every position; Keras
    Hub's has no pooler and no sentence order). --task=classification: the same work everywhere.

Example:
  python benchmarks/train_step.py --size=base --batch_size=4 --max_seq_length=128
"""

from collections.abc import Callable, Sequence
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from typing import IO, Any, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("USE_TF", "1")

from absl import flags
import common
import numpy as np
import tensorflow as tf

from albert_tf.compat import KERAS_3, STACK, keras
from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.errors import UserError
from albert_tf.finetuning.models import AlbertClassifier
from albert_tf.modeling import AlbertForPreTraining

_SIZE = flags.DEFINE_enum("size", "base", named_sizes(), "The model.")
_TASK = flags.DEFINE_enum("task", "pretraining", ["pretraining", "classification"], "What a step trains.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4, "Examples of a step.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.", lower_bound=8)
_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq", 20, "Masked tokens of an example.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Timed steps of each; contenders take turns.", lower_bound=1)
_WORKER = flags.DEFINE_string(
  "worker", "", "Internal: run this contender, one step a line of standard input."
)
_ONLY = flags.DEFINE_list("only", [], "Contenders to run; empty: all that are installed.")

LEARNING_RATE = 1e-5
_MARK = "step: "
Step = Callable[[], Any]


class Batch:
  """Random pieces, masks and labels, the same for every package."""

  def __init__(self, config: AlbertConfig):
    rng = np.random.default_rng(0)
    shape = _BATCH_SIZE.value, _MAX_SEQ_LENGTH.value
    self.ids = rng.integers(5, config.vocab_size, size=shape).astype(np.int32)
    self.mask = np.ones(shape, np.int32)
    self.segments = np.tile((np.arange(shape[1]) >= shape[1] // 2).astype(np.int32), (shape[0], 1))
    choices = [rng.choice(shape[1], _PREDICTIONS.value, replace=False) for _ in range(shape[0])]
    self.positions = np.sort(np.stack(choices), axis=1).astype(np.int32)
    self.targets = np.take_along_axis(self.ids, self.positions, axis=1)
    self.labels = rng.integers(0, 2, size=shape[0]).astype(np.int32)


def _tensorflow_step(model: Any, loss_of: Callable[[Any], tf.Tensor], inputs: Any, *, jit: bool) -> Step:
  """Forward, backward and AdamW in one graph."""
  optimizer = keras.optimizers.AdamW(LEARNING_RATE)
  model(inputs)
  weights = model.trainable_variables
  optimizer.build(weights)

  @tf.function(jit_compile=jit)
  def step(inputs: Any) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = loss_of(model(inputs, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return loss

  tensors = tf.nest.map_structure(tf.constant, inputs)
  return lambda: step(tensors).numpy()


def _cross_entropy(labels: np.ndarray) -> Callable[[tf.Tensor], tf.Tensor]:
  return lambda logits: tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  )


def albert_tf_step(config: AlbertConfig, batch: Batch, *, jit: bool) -> Step:
  inputs = {"input_ids": batch.ids, "input_mask": batch.mask, "segment_ids": batch.segments}
  if _TASK.value == "classification":
    model = AlbertClassifier(config, head_options={"num_labels": 2, "classifier_dropout": 0.0})
    return _tensorflow_step(model, _cross_entropy(batch.labels), inputs, jit=jit)
  masked_lm, sentence_order = _cross_entropy(batch.targets), _cross_entropy(batch.labels)
  return _tensorflow_step(
    AlbertForPreTraining(config, read_positions_only=True),
    lambda outputs: masked_lm(outputs["mlm_logits"]) + sentence_order(outputs["sop_logits"]),
    {**inputs, "masked_lm_positions": batch.positions},
    jit=jit,
  )


def keras_hub_step(config: AlbertConfig, batch: Batch, *, jit: bool) -> Step:
  import keras_hub

  backbone = keras_hub.models.AlbertBackbone(
    vocabulary_size=config.vocab_size,
    num_layers=config.num_hidden_layers,
    num_heads=config.num_attention_heads,
    embedding_dim=config.embedding_size,
    hidden_dim=config.hidden_size,
    intermediate_dim=config.intermediate_size,
    num_groups=config.num_hidden_groups,
    num_inner_repetitions=config.inner_group_num,
    dropout=config.hidden_dropout_prob,
    max_sequence_length=config.max_position_embeddings,
    num_segments=config.type_vocab_size,
  )
  inputs = {"token_ids": batch.ids, "segment_ids": batch.segments, "padding_mask": batch.mask}
  if _TASK.value == "classification":
    model = keras_hub.models.AlbertTextClassifier(backbone, num_classes=2, dropout=0.0)
    return _tensorflow_step(model, _cross_entropy(batch.labels), inputs, jit=jit)
  model = keras_hub.models.AlbertMaskedLM(backbone)
  inputs["mask_positions"] = batch.positions
  return _tensorflow_step(model, _cross_entropy(batch.targets), inputs, jit=jit)


def huggingface_torch_step(config: AlbertConfig, batch: Batch) -> Step:
  import torch
  import transformers

  theirs = transformers.AlbertConfig.from_dict(
    config.to_huggingface_dict() | {"classifier_dropout_prob": 0.0}
  )
  inputs = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.segments}
  if _TASK.value == "classification":
    model: Any = transformers.AlbertForSequenceClassification(theirs)
    inputs["labels"] = batch.labels
  else:
    model = transformers.AlbertForPreTraining(theirs)
    labels = np.full_like(batch.ids, -100)
    np.put_along_axis(labels, batch.positions, batch.targets, axis=1)
    inputs |= {"labels": labels, "sentence_order_label": batch.labels}
  tensors = {key: torch.tensor(value, dtype=torch.int64) for key, value in inputs.items()}
  optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
  model.train()

  def step() -> float:
    optimizer.zero_grad()
    loss = model(**tensors).loss
    loss.backward()
    optimizer.step()
    return float(loss.detach())

  return step


def huggingface_tf_step(config: AlbertConfig, batch: Batch, *, jit: bool) -> Step:
  import transformers

  theirs = transformers.AlbertConfig.from_dict(
    config.to_huggingface_dict() | {"classifier_dropout_prob": 0.0}
  )
  inputs = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.segments}
  if _TASK.value == "classification":
    model = transformers.TFAlbertForSequenceClassification(theirs)
    loss = _cross_entropy(batch.labels)
    return _tensorflow_step(model, lambda outputs: loss(outputs.logits), inputs, jit=jit)
  model = transformers.TFAlbertForPreTraining(theirs)
  labels = np.zeros_like(batch.ids)
  np.put_along_axis(labels, batch.positions, batch.targets, axis=1)
  weights = np.zeros(batch.ids.shape, np.float32)
  np.put_along_axis(weights, batch.positions, 1.0 / batch.positions.size, axis=1)
  sentence_order = _cross_entropy(batch.labels)

  def loss_of(outputs: Any) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs.prediction_logits)
    return tf.reduce_sum(losses * weights) + sentence_order(outputs.sop_logits)

  return _tensorflow_step(model, loss_of, inputs, jit=jit)


def contenders(config: AlbertConfig, batch: Batch) -> dict[str, Callable[[], Step] | str]:
  """Name → how to build its step, or why it is left out."""

  def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)

  found: dict[str, Callable[[], Step] | str] = {
    "albert_tf": lambda: albert_tf_step(config, batch, jit=False),
    "albert_tf_xla": lambda: albert_tf_step(config, batch, jit=True),
    "huggingface_torch": "torch or transformers is not installed",
    "huggingface_tf": "transformers 5 has no TensorFlow models; transformers 4 needs the addons stack",
    "keras_hub": "keras_hub is not installed, or the stack has no Keras 3",
  }
  if installed("torch", "transformers"):
    found["huggingface_torch"] = lambda: huggingface_torch_step(config, batch)
  if installed("transformers") and not KERAS_3:
    found["huggingface_tf"] = lambda: huggingface_tf_step(config, batch, jit=False)
    found["huggingface_tf_xla"] = lambda: huggingface_tf_step(config, batch, jit=True)
  if installed("keras_hub") and KERAS_3:
    found["keras_hub"] = lambda: keras_hub_step(config, batch, jit=False)
    found["keras_hub_xla"] = lambda: keras_hub_step(config, batch, jit=True)
  return found


class Worker:
  """A contender in a process of its own, so that thread pools of several frameworks do not disturb each other."""

  def __init__(self, name: str, arguments: Sequence[str]):
    command = [sys.executable, *arguments, f"--worker={name}"]
    self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

  def step(self) -> tuple[float, float, float]:
    """Runs one step: (seconds, seconds of CPU over all threads, loss)."""
    requests, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
    print("step", file=requests, flush=True)
    for line in answers:
      if line.startswith(_MARK):
        seconds, cpu_seconds, loss = map(float, line.removeprefix(_MARK).split())
        return seconds, cpu_seconds, loss
    raise RuntimeError(f"A contender ended early, with status {self._process.wait()}; its error is above.")

  def close(self) -> None:
    self._process.communicate(timeout=60)


def work(make: Callable[[], Step]) -> None:
  """The worker's side: a step and its time for each line of standard input."""
  step = make()
  for _ in sys.stdin:
    started, cpu_started = time.perf_counter(), time.process_time()
    loss = float(step())
    print(_MARK, time.perf_counter() - started, time.process_time() - cpu_started, loss, flush=True)


def measure(workers: dict[str, Worker], rounds: int) -> dict[str, dict[str, float]]:
  """Seconds of a step, the contenders taking turns so that a busy machine slows all alike."""
  results: dict[str, dict[str, float]] = {}
  for name, worker in workers.items():
    seconds, _, loss = worker.step()
    results[name] = {"first_step_s": round(seconds, 2), "first_loss": round(loss, 4)}
    worker.step()  # Warm-up.
  for name, measured in common.in_turn(
    {name: worker.step for name, worker in workers.items()}, rounds
  ).items():
    wall, cpu = [m[0] for m in measured], statistics.median(m[1] for m in measured)
    results[name] |= {"median_s": round(statistics.median(wall), 4), "best_s": round(min(wall), 4)}
    results[name]["cpu_s"] = round(cpu, 4)  # Says more than the wall clock when others use the machine.
  return results


def times_faster(results: dict[str, dict[str, float]], key: str) -> dict[str, float]:
  """How much longer each other package takes than the better of ours."""
  ours = [values[key] for name, values in results.items() if name.startswith("albert_tf")]
  others = {name: values[key] for name, values in results.items() if not name.startswith("albert_tf")}
  return {name: round(value / min(ours), 2) for name, value in others.items()} if ours else {}


def benchmark() -> dict[str, Any] | None:
  config = AlbertConfig.from_name(_SIZE.value)
  offered = contenders(config, Batch(config))
  unknown = set(_ONLY.value) - set(offered)
  if unknown:
    raise UserError(f"--only takes {', '.join(offered)}. Received: {', '.join(sorted(unknown))}.")
  chosen = {name: make for name, make in offered.items() if not _ONLY.value or name in _ONLY.value}
  if _WORKER.value:
    make = offered[_WORKER.value]
    assert callable(make)
    work(make)
    return None
  left_out = {name: reason for name, reason in chosen.items() if isinstance(reason, str)}
  workers = {name: Worker(name, sys.argv) for name, make in chosen.items() if callable(make)}
  results = measure(workers, _ROUNDS.value)
  for worker in workers.values():
    worker.close()
  return {
    "task": _TASK.value,
    "size": _SIZE.value,
    "dtype": "float32",
    "stack": STACK,
    "batch_size": _BATCH_SIZE.value,
    "max_seq_length": _MAX_SEQ_LENGTH.value,
    "cpu_count": os.cpu_count(),
    "steps": results,
    "times_faster": {key: times_faster(results, key) for key in ("median_s", "best_s", "cpu_s")},
    "left_out": left_out,
  }


if __name__ == "__main__":
  common.run(benchmark)
