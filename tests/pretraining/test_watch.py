"""Warnings of a run name problems and causes; runs without problems have none."""

import dataclasses
import math

import pytest

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.settings import PretrainingSettings, StepConfig
from albert_tf.pretraining.watch import (
  NonFiniteError,
  TrainingWatch,
  check_finite,
  not_learned,
  schedule_warnings,
)
from albert_tf.records.manifest import Baseline, Manifest, RecordFile


def test_not_finite_names_steps_checkpoint_and_remedy():
  finite = {"loss": 7.0, "gradient_norm": 1.0}
  check_finite(finite, first_step=1, last_step=10, last_checkpoint=None)
  with pytest.raises(
    NonFiniteError, match=r"Received: gradient_norm=inf, loss=nan .* 101 .* 200.*ckpt-100"
  ):
    check_finite({"loss": math.nan, "gradient_norm": math.inf, "learning_rate": 0.1},
                 first_step=101, last_step=200, last_checkpoint="run/checkpoints/model.ckpt-100")  # fmt: skip
  with pytest.raises(UserError, match=r"Received: loss=nan .* 1 .* 5"):
    check_finite({"loss": math.nan}, first_step=1, last_step=5, last_checkpoint=None)


def settings(*, batch_size=4096, width=1, **optimizer):
  """The paper's settings with changes; `width`: how many times narrower than base."""
  model = AlbertConfig.from_name("base")
  return PretrainingSettings(
    input_files=(),
    output_dir="",
    model=dataclasses.replace(model, hidden_size=model.hidden_size // width, num_attention_heads=1),
    optimizer=OptimizerConfig(**optimizer),
    step=StepConfig(global_batch_size=batch_size),
    max_seq_length=512,
    max_predictions_per_seq=20,
  )


def observe(losses, *, accuracy=0.05, num_warmup_steps=0, name="lamb"):
  """Words of a run of 10,000 steps with a report every 10."""
  watch = TrainingWatch(
    settings(num_train_steps=10_000, num_warmup_steps=num_warmup_steps, name=name)
  )
  return [
    (10 * i, word)
    for i, loss in enumerate(losses, 1)
    for word in watch.observe(10 * i, {"masked_lm_loss": loss, "masked_lm_accuracy": accuracy})
  ]


def test_plateau_is_told_once_and_again_when_it_lasts_twice_as_long():
  heard = observe([7.0] * 300)
  assert [step for step, _ in heard] == [500, 1000, 2000]
  assert "loss is 7.00 at step 500" in heard[0][1]
  assert "--optimizer=muon" in heard[0][1]
  assert "--muon_learning_rate" in observe([7.0] * 300, name="muon")[0][1]
  assert not observe([5.0] * 300)  # Far below the entropy.
  assert not observe([7.0] * 300, num_warmup_steps=3000)
  assert not observe([7.0] * 300, accuracy=0.12)  # Twice the most frequent piece.


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({}, []),
    ({"batch_size": 32, "width": 6}, []),
    ({"batch_size": 32}, ["--learning_rate=0.000156 is the paper's"]),
    ({"learning_rate": 1e-5}, ["0.0057 times what"]),
    ({"num_warmup_steps": 0}, ["warm-up of 0 steps"]),
    ({"num_train_steps": 5000}, ["62.50% of the run"]),
    ({"name": "adamw", "learning_rate": 0.003}, ["7.5 times"]),
    ({"name": "adamw", "learning_rate": 1e-4, "batch_size": 256}, []),
    ({"batch_size": 32, "num_train_steps": 5000}, ["11 times", "62.50%"]),
    ({"name": "muon", "muon_learning_rate": 0.01}, []),
    ({"name": "muon", "muon_learning_rate": 0.1}, ["--muon_learning_rate=0.1 is 13 times"]),
    ({"name": "muon", "batch_size": 32, "width": 6, "muon_learning_rate": 0.004}, []),
    (
      {"name": "muon", "batch_size": 32, "muon_learning_rate": 0.03},
      ["--learning_rate=0.000156 is the paper's", "--muon_learning_rate=0.000667 is the demo"],
    ),
  ],
)
def test_settings_that_do_not_fit_together(change, words):
  heard = schedule_warnings(settings(**change))
  assert len(heard) == len(words)
  for sentence, word in zip(heard, words, strict=True):
    assert word in sentence


@pytest.mark.parametrize(
  ("order", "masked_lm", "words"),
  [
    (0.501, 0.2, ["sentence order is at chance: 50.1% of 6,400, chance 50 ± 1.2%"]),
    (0.512, 0.2, ["sentence order is at chance"]),
    (0.514, 0.2, []),
    (None, 0.058, ["masked LM is on its plateau: 5.8%, with the most frequent token alone 5.8%"]),
    (None, 0.059, []),
    (0.4, 0.01, ["at chance: 40.0%", "on its plateau: 1.0%"]),
  ],
)
def test_what_was_not_learned(tmp_path, order, masked_lm, words):
  parts = (RecordFile("eval-0", "eval", 9000, 0, ""), RecordFile("train-0", "train", 9, 0, ""))
  Manifest(8000, "", 32, 5, "sop", 1, parts, Baseline(5, "the", 0.07, 0.058)).save(str(tmp_path))
  for each in parts:
    (tmp_path / each.name).touch()
  run = {"eval_input_files": [f"{tmp_path}/eval-0"], "max_eval_steps": 100, "eval_batch_size": 64}
  heard = not_learned({"masked_lm_accuracy": masked_lm, "sentence_order_accuracy": order}, run)
  assert len(heard) == len(words)
  for sentence, word in zip(heard, words, strict=True):
    assert word in sentence
    assert "Make more updates, change --learning_rate" in sentence
