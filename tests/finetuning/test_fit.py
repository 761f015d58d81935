"""The engine: learning, equal repetitions, the best checkpoint, continuation, files, and refusals."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from support.synthetic_checkpoint import write_tf1
from support.tiny_finetuning import BFLOAT16, QUICK, made_up_texts, tiny_start, tiny_task

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.fit import Predictor, fine_tune
from albert_tf.finetuning.engine.results import lines
from albert_tf.modeling import AlbertForPreTraining, named_variables

SHORT = dataclasses.replace(
  QUICK,
  num_train_steps=0,
  num_train_epochs=1.0,
  eval_steps=0,
  train_batch_size=4,
  eval_batch_size=4,
)


def small_task(train_seed=5, **options):
  splits = {"train": made_up_texts(13, seed=train_seed), "eval": made_up_texts(13, seed=5)}
  return tiny_task({**splits, "test": made_up_texts(6, seed=6, labelled=False)}, **options)


def run(directory, settings=SHORT, *, of=None, start=None, callbacks=(), **changes):
  return fine_tune(
    of or small_task(),
    dataclasses.replace(settings, **changes),
    start=start or tiny_start(),
    output_dir=str(directory),
    flags_text=f"--changes={sorted(changes)}",
    callbacks=callbacks,
  )


def weights(directory):
  values = read_bundle(latest_bundle(str(directory / "checkpoints/best")))
  return {name: value for name, value in values.items() if name != "global_step"}


def start_from(directory):
  checkpoint = read_checkpoint(str(directory))
  return dataclasses.replace(tiny_start(), checkpoint=checkpoint, source=checkpoint.path)


def records(directory):
  names = ("run.json", "flags.txt", "task.json", "albert_config.json")
  return {name: (directory / name).read_bytes() for name in names}


def metrics(results):
  return {
    name: value
    for name, value in results.items()
    if isinstance(value, float) and "seconds" not in name
  }


@pytest.mark.parametrize(
  "family",
  [
    {},
    pytest.param({"pair": True, "classes": 3}, marks=pytest.mark.slow),
    pytest.param({"pair": True, "regression": True}, marks=pytest.mark.slow),
  ],
  ids=["single sentence", "three classes", "regression"],
)
def test_a_tiny_model_learns_64_examples_by_heart(tmp_path, family):
  texts = made_up_texts(64, **family)
  task = tiny_task({"train": texts, "eval": texts}, **family)
  results = run(tmp_path / "run", QUICK, of=task)
  assert results["pearson" if "regression" in family else "accuracy"] >= 0.95


@pytest.mark.slow
def test_several_seeds(tmp_path):
  settings = dataclasses.replace(SHORT, classifier_dropout=0.1)
  folder, start = tmp_path / "several", tiny_start(hidden_dropout_prob=0.1)
  several = run(folder, settings, start=start, seeds=(1, 2))
  single = run(tmp_path / "single", settings, start=start, seeds=(2,))  # As if it had been alone.
  assert metrics(single) == metrics(several["seeds"]["2"])
  first, second = weights(folder / "seed_1"), weights(folder / "seed_2")
  assert all(np.array_equal(v, second[k]) for k, v in weights(tmp_path / "single").items())
  assert not np.array_equal(first["output_weights"], second["output_weights"])
  # The directory has the medians, and names the best seed's.
  losses = [several["seeds"][s]["loss"] for s in "12"]
  assert several["median"]["loss"] == pytest.approx(np.mean(losses))
  assert several["spread"]["loss"]["min"] == min(losses)
  assert several["spread"]["loss"]["standard_deviation"] == pytest.approx(np.std(losses, ddof=1))
  assert list(lines(several))[-1] == f"best seed: {several['best_seed']}, in {several['best_run']}/"
  best = weights(folder / several["best_run"])
  named = read_checkpoint(str(folder))
  assert all(np.array_equal(v, best[k]) for k, v in named.variables.items())
  # Prediction of all of them leaves what training recorded.
  before = records(folder / "seed_1")
  run(
    folder, start=start_from(folder), seeds=(1, 2), do_train=False, do_eval=False, do_predict=True
  )
  assert records(folder / "seed_1") == before
  assert (folder / "seed_1/predictions_test.tsv").exists()
  # Finished seeds are kept, a new one is trained, one without results is trained again.
  times = {s: (folder / f"seed_{s}/metrics.jsonl").stat().st_mtime_ns for s in "12"}
  (folder / "seed_2/results.json").unlink()
  more = run(folder, settings, start=start, seeds=(1, 2, 3))
  now = {s: (folder / f"seed_{s}/metrics.jsonl").stat().st_mtime_ns for s in "12"}
  assert times["1"] == now["1"]
  assert times["2"] != now["2"]
  for seed in "12":
    assert more["seeds"][seed]["loss"] == several["seeds"][seed]["loss"]
  assert json.loads((folder / "results.json").read_text())["seeds"].keys() == {"1", "2", "3"}


@pytest.mark.slow
def test_what_a_finished_run_does_later(tmp_path, monkeypatch):
  predicted = []
  call = Predictor.__call__

  def counted(self, split):
    predicted.append(split)
    return call(self, split)

  monkeypatch.setattr(Predictor, "__call__", counted)
  folder = tmp_path / "run"
  trained = run(folder)
  assert predicted == ["eval"]  # The outputs of the best weights are there already.
  before, own = records(folder), start_from(folder)
  run(
    folder,
    of=small_task(max_seq_length=16),
    start=own,
    do_train=False,
    do_eval=False,
    do_predict=True,
  )
  for place in (folder, tmp_path / "elsewhere"):
    again = run(place, start=own, do_train=False, do_predict=True)
    assert again["loss"] == pytest.approx(trained["loss"], abs=1e-6)
    assert len((place / "predictions_test.tsv").read_text().splitlines()) == 7
  assert records(folder) == before
  assert TaskSpec.load(str(folder)).max_seq_length == 40
  results = json.loads((folder / "results.json").read_text())
  assert (results["init_checkpoint"], results["best_step"]) == (
    "random weights",
    trained["best_step"],
  )
  assert run(folder)["train_steps"] == 4
  for message, options in {
    r"learning_rate 0.003 → 0.1": {"learning_rate": 0.1},
    r"content of train examples .* → ": {"of": small_task(train_seed=8)},
    r"for one task.*'tiny', for 'other'": {"of": small_task(name="other"), "do_train": False},
    r"its own weights.*run_b/checkpoints.*--init_checkpoint": {
      "start": dataclasses.replace(own, source=f"{folder}_b/checkpoints/best/model.ckpt-4"),
      "do_train": False,
    },
    r"its own weights.*elsewhere.*--init_checkpoint": {
      "start": dataclasses.replace(own, source="elsewhere"),
      "do_train": False,
    },
  }.items():
    with pytest.raises(UserError, match=message):
      run(folder, **options)
  assert json.loads((folder / "results.json").read_text()) == results


@pytest.mark.slow
def test_another_tasks_model_does_not_answer(tmp_path):
  """Two tasks of GLUE may have the same labels, so that the weights of one fit the other."""
  run(tmp_path / "rte", of=small_task(name="rte"))
  predict = {
    "start": start_from(tmp_path / "rte"),
    "do_train": False,
    "do_eval": False,
    "do_predict": True,
  }
  with pytest.raises(UserError, match=r"for one task.*'rte', for 'sst-2' \(name"):
    run(tmp_path / "out", of=small_task(name="sst-2"), **predict)
  with pytest.raises(UserError, match=r"label_names \('c0', 'c1'\) → \('c0', 'c1', 'c2'\)"):
    run(tmp_path / "out", of=small_task(name="rte", classes=3), **predict)
  assert not (tmp_path / "out").exists()
  run(
    tmp_path / "out", of=small_task(name="custom"), **predict
  )  # A table of one's own may be of any task.
  assert (tmp_path / "out/predictions_test.tsv").exists()


@pytest.mark.slow
def test_only_the_encoder_comes_from_the_checkpoint(tmp_path):
  start = tiny_start()
  model = AlbertForPreTraining(start.config)
  values = {name: variable.numpy() for name, variable in named_variables(model).items()}
  checkpoint = read_checkpoint(write_tf1(tmp_path / "pretrained", start.config, values))
  # Updates of size 0: the weights that were restored are those that are saved.
  settings = dataclasses.replace(SHORT, num_train_steps=1, num_warmup_steps=0, learning_rate=1e-30)
  run(tmp_path / "run", settings, start=dataclasses.replace(start, checkpoint=checkpoint))
  saved = weights(tmp_path / "run")
  encoder = [name for name in saved if name.startswith("bert/")]
  assert len(encoder) == len(saved) - 2
  assert all(np.array_equal(saved[name], values[name]) for name in encoder)
  lacking = {k: v for k, v in values.items() if "ffn_1/intermediate/output/dense/kernel" not in k}
  broken = dataclasses.replace(start, checkpoint=dataclasses.replace(checkpoint, variables=lacking))
  with pytest.raises(UserError, match="intermediate/output/dense/kernel"):
    run(tmp_path / "broken", settings, start=broken)


@pytest.mark.slow
def test_lamb_bfloat16_dropout_and_user_callbacks(tmp_path):
  seen = []

  class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      seen.append(sorted(logs))

  settings = dataclasses.replace(
    SHORT,
    optimizer="lamb",
    distribution=BFLOAT16,
    dropout=0.2,
    bucket_multiple=0,
    num_train_epochs=2.0,
  )
  assert np.isfinite(run(tmp_path / "run", settings, callbacks=[Watch()])["loss"])
  by_class = ["val_f1", "val_f1_c0", "val_f1_c1"]
  assert seen == [["loss", "val_accuracy", *by_class, "val_loss"]] * 2
  saved = json.loads((tmp_path / "run/albert_config.json").read_text())
  assert saved["hidden_dropout_prob"] == saved["attention_probs_dropout_prob"] == 0.2
  reports = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  found = [(line["step"], line["split"]) for line in reports]
  assert found == [(4, "train"), (4, "eval"), (8, "train"), (8, "eval")]
  assert {"loss", "learning_rate", "examples_per_second"} <= reports[0].keys()


def test_what_is_refused_leaves_no_directory(tmp_path):
  for message, changes in {
    "learning_rate must be above 0. Received: -1.0": {"learning_rate": -1.0},
    "clip_norm must be at least 0": {"clip_norm": float("nan")},
    "learning_rate must be a finite number": {"learning_rate": float("inf")},
    "num_train_epochs must be above 0 and at most 1000": {"num_train_epochs": 1e30},
    "save_checkpoints_steps must be at least 0": {"eval_steps": -1},
    "optimizer must be one of": {"optimizer": "sgd"},
    "Seeds are different": {"seeds": (1, 1)},
    "warm-up must end within the run": {"num_warmup_steps": 9, "seeds": (1, 2)},
    r"train_batch_size must be divisible.*gradient_accumulation_steps=3": {
      "gradient_accumulation_steps": 3
    },
    "max_position_embeddings=40": {"of": small_task(max_seq_length=64)},
  }.items():
    with pytest.raises(UserError, match=message):
      run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
  (tmp_path / "thesis.tex").write_text("")
  with pytest.raises(UserError, match=r"thesis\.tex"):
    run(tmp_path)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_training(tmp_path):
  task = small_task()
  task.loss = lambda: lambda labels, logits: logits[:, 0] * float("nan")
  with pytest.raises(UserError, match="must stay finite"):
    run(tmp_path / "run", of=task)


def test_weights_that_are_not_finite_are_never_the_best(tmp_path):
  """One update by an immense rate: the loss before it is finite, and so is the accuracy after it."""
  settings = dataclasses.replace(SHORT, num_train_steps=2, num_warmup_steps=0, eval_steps=1)
  with pytest.raises(UserError, match=r"finite.*--learning_rate"):
    run(tmp_path / "run", settings, learning_rate=1e38)
  assert not (tmp_path / "run/results.json").exists()
  assert latest_bundle(str(tmp_path / "run/checkpoints/best")) is None
