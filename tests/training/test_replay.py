"""A replayed update is the very batch and gradient of the run, and names the culprit."""

import dataclasses
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from support.tiny_pretraining import tiny_settings
from support.tiny_records import random_examples, write_records

from albert_tf.errors import UserError
from albert_tf.records import read_records
from albert_tf.records.decode import decode_example
from albert_tf.training.pretraining import run_pretraining
from albert_tf.training.replay.compute import replay_step
from albert_tf.training.replay.source import reported_near
from albert_tf.training.replay.text import example_text, render, to_json


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


def reports(run):
  lines = (run / "run/metrics.jsonl").read_text().splitlines()
  return {r["step"]: r for r in map(json.loads, lines) if r["split"] == "train"}


@pytest.mark.parametrize(
  ("step", "weights", "weights_step"),
  [(1, "the run's initial weights", 0), (5, "model.ckpt-4", 4), (9, "model.ckpt-8", 8)],
)
def test_losses_and_gradient_are_those_of_the_update(run, step, weights, weights_step):
  replayed = replay_step(str(run / "run"), step, rows_at_once=3)
  assert (replayed.weights, replayed.weights_step) == (weights, weights_step)
  expected = reports(run)[step]
  written = to_json(replayed, None)  # By the names of metrics.jsonl.
  for key in ("masked_lm_loss", "masked_lm_accuracy", "sentence_order_loss", "gradient_norm"):
    assert written[key] == pytest.approx(expected[key], rel=1e-4), key
  assert replayed.reported["first_step"] == replayed.reported["step"] == step
  assert replayed.loss == pytest.approx(sum(example.share for example in replayed.examples), rel=1e-5)
  losses = [example.loss for example in replayed.examples]
  assert losses == sorted(losses, reverse=True)
  assert [example.gradient_norm is not None for example in replayed.examples] == [True] * 5 + [False] * 3


@pytest.mark.parametrize("step", [3, 10, 11])
def test_every_example_is_the_record_it_is_said_to_be(run, step):
  """Steps 10 and 11 lie on both sides of an epoch's end."""
  replayed = replay_step(str(run / "run"), step, num_gradients=0)
  assert sorted(example.row for example in replayed.examples) == list(range(8))
  for example in replayed.examples:
    data = list(read_records(example.place.path))[example.place.record]
    np.testing.assert_array_equal(example.features["input_ids"], decode_example(data)["input_ids"])


@pytest.mark.slow
def test_records_that_moved_are_named_and_others_refused(run, tmp_path):
  moved = tmp_path / "moved"
  shutil.copytree(run, moved)
  for path in (run / "train-0", run / "train-1"):
    path.rename(path.with_suffix(".away"))
  try:
    with pytest.raises(UserError, match=r"train-0, which is not there .*--input_file"):
      replay_step(str(moved / "run"), 5)
    found = replay_step(str(moved / "run"), 5, input_files=sorted(map(str, moved.glob("train-[01]"))))
  finally:
    for path in run.glob("train-?.away"):
      path.rename(path.with_suffix(""))
  here = replay_step(str(run / "run"), 5)
  assert [example.loss for example in found.examples] == [example.loss for example in here.examples]
  with pytest.raises(UserError, match=r"very records of the run.*1 files"):
    replay_step(str(run / "run"), 5, input_files=[str(run / "train-0")])


def test_what_is_no_update_of_a_pretraining_run_is_refused(run, tmp_path):
  for step in (0, 13):
    with pytest.raises(UserError, match=rf"Received: {step}; .* has updates 1 to 12"):
      replay_step(str(run / "run"), step)
  with pytest.raises(
    UserError, match=r"run directory of run_pretrain.py. Received: .*, which has no run\.json"
  ):
    replay_step(str(tmp_path), 1)
  (tmp_path / "run.json").write_text('{"settings": {"task": "mrpc"}, "identity": {"task": "mrpc"}}')
  with pytest.raises(UserError, match=r"run\.json is not of a pretraining run"):
    replay_step(str(tmp_path), 1)


@pytest.mark.slow
def test_checkpoints_that_are_gone_and_batches_that_grew(run, tmp_path):
  copy = tmp_path / "run"
  shutil.copytree(run / "run", copy)
  exact = replay_step(str(copy), 10)
  for path in copy.glob("checkpoints/model.ckpt-4.*"):
    path.unlink()
  for path in copy.glob("checkpoints/model.ckpt-12.*"):
    path.unlink()
  replayed = replay_step(str(copy), 7)  # 8 is nearer than the beginning.
  assert (replayed.weights, replayed.weights_step) == ("model.ckpt-8", 8)
  record = json.loads((copy / "run.json").read_text())
  record["settings"]["step"]["global_batch_size"] = 16
  (copy / "run.json").write_text(json.dumps(record))
  assert len(replay_step(str(copy), 7).examples) == 8  # The checkpoints tell what it was then.
  grown = replay_step(str(copy), 9)
  assert len(grown.examples) == 16
  first = {example.place for example in replay_step(str(run / "run"), 9).examples}
  assert {example.place for example in grown.examples} == first | {
    example.place for example in exact.examples
  }


@pytest.mark.slow
def test_a_poisoned_example_comes_first_and_is_said_to_be_not_finite(tmp_path):
  examples = random_examples(40, seed=1)
  examples[7]["masked_lm_weights"] = np.array([np.inf, 0.0, 0.0], np.float32)
  path = write_records(tmp_path / "train", examples)
  settings = tiny_settings(tmp_path, "run", input_files=(path,), eval_input_files=())
  settings = dataclasses.replace(settings, step=dataclasses.replace(settings.step, on_nonfinite="skip"))
  run_pretraining(settings)
  lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
  last = next(r["step"] for r in map(json.loads, lines) if r["skipped_updates"])
  found = [replay_step(str(tmp_path / "run"), step) for step in (last - 1, last)]
  replayed = next(each for each in found if not np.isfinite(each.loss))
  assert replayed.examples[0].place == (path, 7)
  assert replayed.has_dropout
  text = "\n".join(render(replayed, None, num_shown=2, max_chars=0, width=100))
  assert "NOT FINITE: 1 of 8 examples, listed first" in text
  assert "#1 · loss nan" in text or "#1 · loss inf" in text
  assert "without the dropout" in text
  assert to_json(replayed, None)["loss"] is None


def test_reports_of_a_run_that_goes_on_in_a_bucket_are_found_in_parts(tmp_path):
  (tmp_path / "metrics").mkdir()
  (tmp_path / "metrics/part-00000000.jsonl").write_text('{"step": 4, "split": "train", "loss": 2.0}\n')
  assert reported_near(str(tmp_path), 3) == {"first_step": 1, "step": 4, "split": "train", "loss": 2.0}
  assert reported_near(str(tmp_path), 5) is None


def test_the_text_marks_what_was_masked_and_the_json_has_all(run):
  replayed = replay_step(str(run / "run"), 5)
  example = replayed.examples[0]
  text = example_text(example, None)
  used = int(example.features["masked_lm_weights"].sum())
  masked = " ".join(re.findall(r"\{([\d ]+)(?: ~ [\d ]+)?\}", text)).split()
  by_position = np.argsort(example.features["masked_lm_positions"][:used])
  assert masked == [str(index) for index in example.features["masked_lm_ids"][:used][by_position]]
  originals = example.features["input_ids"].copy()
  for p in range(used):
    originals[example.features["masked_lm_positions"][p]] = example.features["masked_lm_ids"][p]
  length = int(example.features["input_mask"].sum())
  assert re.sub(r" ~ [\d ]+|[{}]", "", text).split() == [str(index) for index in originals[:length]]
  lines = list(render(replayed, None, num_shown=3, max_chars=12, width=60))
  assert lines[1] == "weights: model.ckpt-4, those that the update was made from"
  assert sum(line.startswith("#") for line in lines) == 3
  assert sum("characters)" in line for line in lines) == 3
  whole = json.loads(json.dumps(to_json(replayed, None), allow_nan=False))
  assert len(whole["examples"]) == 8
  assert whole["examples"][0]["predictions"][0].keys() == {
    "position", "true", "predicted", "probability", "loss"
  }  # fmt: skip
  assert pathlib.Path(whole["examples"][0]["file"]).name in ("train-0", "train-1")
