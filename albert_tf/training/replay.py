"""The batch of one update as text, with each example's loss under the nearest checkpoint: a spike gets its culprit."""

from collections.abc import Iterator, Sequence
import dataclasses
import json
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import load_weights
from albert_tf.checkpoints.bundle import HOST_PREFIX, checkpoint_steps
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.tokenization import Tokenizer, load_tokenizer
from albert_tf.tokenization.config import holds_tokenizer
from albert_tf.training.distribution import set_precision
from albert_tf.training.inputs import checked_input
from albert_tf.training.run_directory import RUN_FILE, RunDirectory
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.warm_start import start_weights

_ROWS_AT_ONCE = 8


class ReplayedExample(NamedTuple):
  """One example of the batch; losses in nats, without dropout."""

  row: int
  loss: float  # The mean of its predictions, plus the sentence loss.
  masked_lm_loss: float
  sentence_loss: float  # 0 where the run has none.
  text: str  # As it was before masking: {as predicted}, {as it was ~ as predicted}.


class ReplayedStep(NamedTuple):
  """The batch of update `step`, the highest loss first, those that are not finite before all."""

  step: int
  weights: str  # In words.
  examples: list[ReplayedExample]


def replay_step(run_dir: str, step: int, *, input_files: Sequence[str] = ()) -> ReplayedStep:
  """Computes the losses of the batch of update `step` again.

  Args:
    run_dir: of run_pretrain.py.
    step: number of the update, from 1 on; it need not have been made yet.
    input_files: where the run's records are now; by default where they were.

  Raises:
    UserError: no pretraining run there, a step beyond it, or other records than those of the run.
  """
  settings = _read_settings(run_dir)
  settings = dataclasses.replace(
    settings, input_files=tuple(input_files) or settings.input_files, eval_input_files=()
  )
  if not 1 <= step <= settings.num_train_steps:
    raise UserError(
      f"--step must be an update of the run. Received: {step}; {run_dir} has updates 1 to {settings.num_train_steps:,}."
    )
  prefix, position, batch_size = _find_origin(run_dir, settings, step)
  settings = dataclasses.replace(
    settings,
    step=dataclasses.replace(settings.step, global_batch_size=batch_size, gradient_accumulation_steps=1),
  )
  strategy, directory = tf.distribute.OneDeviceStrategy("cpu:0"), RunDirectory(run_dir)
  inputs = checked_input(settings, strategy, write=False, verbose=False)
  directory.check(settings, inputs.identity)  # They must be the very records.
  batch = {name: value.numpy() for name, value in next(inputs.training_iterator(position)).items()}
  set_precision(settings.distribution.precision)
  model = AlbertForPreTraining(settings.model, read_positions_only=True)
  if prefix:
    load_weights(model, prefix)
    weights = os.path.basename(prefix)
  else:
    weights = start_weights(named_variables(model), settings)
  tokenizer = load_tokenizer(run_dir) if holds_tokenizer(run_dir) else None
  examples: list[ReplayedExample] = []
  for begin in range(0, batch_size, _ROWS_AT_ONCE):
    rows = {name: value[begin : begin + _ROWS_AT_ONCE] for name, value in batch.items()}
    examples += _replay_rows(model, rows, tokenizer, begin, bool(settings.step.sentence_task))
  examples.sort(key=lambda example: -example.loss if np.isfinite(example.loss) else -np.inf)
  return ReplayedStep(step, weights, examples)


def _read_settings(run_dir: str) -> PretrainingSettings:
  path = os.path.join(run_dir, RUN_FILE)
  if not files.exists(path):
    raise UserError(f"--run must be a directory of run_pretrain.py. Received: {run_dir}, without {RUN_FILE}.")
  settings = PretrainingSettings.from_dict(json.loads(files.read_bytes(path))["settings"], source=path)
  # The run has a copy of the vocabulary, wherever the records are now.
  return dataclasses.replace(settings, tokenizer_path=run_dir if settings.tokenizer_path else "")


def _find_origin(run_dir: str, settings: PretrainingSettings, step: int) -> tuple[str, int, int]:
  """The last checkpoint before update `step` ("" for none), and where its batch begins, and how large it is.

  A run may have been continued with another batch size, which run.json does not tell of earlier updates.
  """

  def examples_seen(step: int) -> int:
    reader = tf.train.load_checkpoint(os.path.join(folder, f"model.ckpt-{step}"))
    return int(reader.get_tensor(HOST_PREFIX + "examples_seen"))

  folder = RunDirectory(run_dir).checkpoints
  steps = checkpoint_steps(folder)
  before = max((each for each in steps if each < step), default=0)
  after = min((each for each in steps if each >= step), default=None)
  seen = examples_seen(before) if before else 0
  batch_size = settings.step.global_batch_size
  if after is not None:
    batch_size, rest = divmod(examples_seen(after) - seen, after - before)
    if rest:
      raise UserError(
        "The batch size must be known. Received: a run whose --train_batch_size was changed between updates "
        f"{before:,} and {after:,}, the nearest checkpoints. Take an update beyond {after:,}."
      )
  prefix = os.path.join(folder, f"model.ckpt-{before}") if before else ""
  return prefix, seen + (step - 1 - before) * batch_size, batch_size


def _replay_rows(
  model: AlbertForPreTraining,
  batch: dict[str, np.ndarray],
  tokenizer: Tokenizer | None,
  first_row: int,
  has_sentence_loss: bool,
) -> Iterator[ReplayedExample]:
  outputs = model({name: tf.constant(value) for name, value in batch.items()}, training=False)
  logits = tf.cast(outputs["mlm_logits"], tf.float32)  # [b, P, V]
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["masked_lm_ids"], logits).numpy()  # [b, P]
  predicted = tf.argmax(logits, axis=-1).numpy()
  labels, label_logits = batch["sentence_order_labels"], tf.cast(outputs["sop_logits"], tf.float32)
  sentence = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, label_logits).numpy() * has_sentence_loss
  weights = batch["masked_lm_weights"]
  with np.errstate(invalid="ignore"):  # What is not finite is what one looks for.
    masked_lm = (weights * losses).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0)
  for i in range(len(losses)):
    text = _text({name: value[i] for name, value in batch.items()}, predicted[i], tokenizer)
    loss, of_sentence = float(masked_lm[i]), float(sentence[i])
    yield ReplayedExample(first_row + i, loss + of_sentence, loss, of_sentence, text)


def _text(example: dict[str, np.ndarray], predicted: np.ndarray, tokenizer: Tokenizer | None) -> str:
  """The example's text, or its ids without a tokenizer, with what was predicted in braces."""

  def show(index: int) -> str:
    return f" {index}" if tokenizer is None else tokenizer.id_to_piece(int(index)).replace("▁", " ")

  pieces = [show(index) for index in example["input_ids"][: int(example["input_mask"].sum())]]
  for p in np.flatnonzero(example["masked_lm_weights"]):
    true, guessed = show(example["masked_lm_ids"][p]), show(predicted[p])
    wrong = "" if guessed == true else f" ~ {guessed.strip()}"
    pieces[example["masked_lm_positions"][p]] = f"{' ' * true.startswith(' ')}{{{true.strip()}{wrong}}}"
  return "".join(pieces).strip()
