"""A replayed update is the very batch of the run, and names the culprit."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from support.tiny_pretraining import tiny_settings
from support.tiny_records import random_examples, write_records

from albert_tf.errors import UserError
from albert_tf.training.pretraining import run_pretraining
from albert_tf.training.replay import replay_step


def no_dropout(settings):
  model = settings.model.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  return dataclasses.replace(settings, model=model)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run of 12 updates without dropout, reports of each, checkpoints at 4, 8 and 12; two record files."""
  folder = tmp_path_factory.mktemp("replay")
  paths = [write_records(folder / f"train-{i}", random_examples(40, seed=10 + i)) for i in range(2)]
  settings = tiny_settings(folder, "run", input_files=tuple(paths), iterations_per_loop=1)
  run_pretraining(no_dropout(settings))
  return folder


def check_losses(run_dir, step):
  lines = (run_dir / "metrics.jsonl").read_text().splitlines()
  expected = next(r for r in map(json.loads, lines) if (r["step"], r["split"]) == (step, "train"))
  replayed = replay_step(str(run_dir), step)
  losses = [example.loss for example in replayed.examples]
  assert losses == sorted(losses, reverse=True)
  assert sorted(example.row for example in replayed.examples) == list(range(8))
  sentence = np.mean([example.sentence_loss for example in replayed.examples])
  assert sentence == pytest.approx(expected["sentence_order_loss"], rel=1e-4)
  return replayed


@pytest.mark.parametrize(
  ("step", "weights"), [(1, "starting from scratch"), (5, "model.ckpt-4"), (9, "model.ckpt-8")]
)
def test_losses_are_those_of_the_update(run, step, weights):
  """Steps 10 and 11 lie on both sides of an epoch's end."""
  assert check_losses(run / "run", step).weights == weights


def test_a_run_that_began_with_a_warm_start(run, tmp_path):
  paths = (str(run / "train-0"), str(run / "train-1"))
  settings = tiny_settings(
    tmp_path, "warm", input_files=paths, iterations_per_loop=1, init_checkpoint=str(run / "run")
  )
  run_pretraining(no_dropout(settings))
  assert check_losses(tmp_path / "warm", 1).weights.startswith("starting from the weights of ")


def test_the_text_marks_what_was_masked(run):
  example = replay_step(str(run / "run"), 5).examples[0]
  assert "{" in example.text
  assert all(word.strip("{}").isdigit() or word == "~" for word in example.text.split())  # No tokenizer here.


def test_other_records_and_no_update_are_refused(run, tmp_path):
  with pytest.raises(UserError, match=r"holds one run.*another"):
    replay_step(str(run / "run"), 5, input_files=[str(run / "train-0")])
  for step in (0, 13):
    with pytest.raises(UserError, match=rf"Received: {step}; .* has updates 1 to 12"):
      replay_step(str(run / "run"), step)
  with pytest.raises(UserError, match=r"without run\.json"):
    replay_step(str(tmp_path), 1)


@pytest.mark.slow
def test_batches_that_grew(run, tmp_path):
  copy = tmp_path / "run"
  shutil.copytree(run / "run", copy)
  for path in copy.glob("checkpoints/model.ckpt-12.*"):
    path.unlink()
  record = json.loads((copy / "run.json").read_text())
  record["settings"]["step"]["global_batch_size"] = 16
  (copy / "run.json").write_text(json.dumps(record))
  assert len(replay_step(str(copy), 7).examples) == 8  # The checkpoints tell what it was then.
  assert len(replay_step(str(copy), 9).examples) == 16


@pytest.mark.slow
def test_a_poisoned_example_comes_first(tmp_path):
  examples = random_examples(40, seed=1)
  examples[7]["masked_lm_weights"] = np.array([np.inf, 0.0, 0.0], np.float32)
  path = write_records(tmp_path / "train", examples)
  settings = tiny_settings(tmp_path, "run", input_files=(path,), eval_input_files=())
  settings = dataclasses.replace(settings, step=dataclasses.replace(settings.step, on_nonfinite="skip"))
  run_pretraining(settings)
  lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
  last = next(r["step"] for r in map(json.loads, lines) if r["skipped_updates"])
  found = [replay_step(str(tmp_path / "run"), step).examples for step in (last - 1, last)]
  assert [sum(not np.isfinite(each.loss) for each in examples) for examples in found].count(1) == 1
  assert any(not np.isfinite(examples[0].loss) for examples in found)
