"""The engine: learns, repeats, gives the same on more replicas, keeps the best, continues, refuses."""

import dataclasses
import json

import numpy as np
import pytest
from support.tiny_finetuning import BFLOAT16, QUICK, made_up_texts, tiny_start, tiny_task

from albert_tf.checkpoints import read_checkpoint
from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.fit import fine_tune
from albert_tf.finetuning.engine.predict import Predictor
from albert_tf.modeling import AlbertForPreTraining, named_variables

SHORT = dataclasses.replace(
  QUICK, num_train_steps=0, num_train_epochs=2.0, eval_steps=0, train_batch_size=4, eval_batch_size=4
)


def weights(directory):
  values = read_bundle(latest_bundle(str(directory / "checkpoints/best")))
  return {name: value for name, value in values.items() if name != "global_step"}


def small_task(**options):
  texts = made_up_texts(13, seed=5)
  test = made_up_texts(6, seed=6, labelled=False)
  return tiny_task({"train": texts, "eval": texts, "test": test}, **options)


@pytest.mark.parametrize(
  "family",
  [
    {},
    pytest.param({"pair": True}, marks=pytest.mark.slow),
    pytest.param({"pair": True, "classes": 3}, marks=pytest.mark.slow),
    pytest.param({"pair": True, "regression": True}, marks=pytest.mark.slow),
  ],
  ids=["single sentence", "pair", "three classes", "regression"],
)
def test_a_tiny_model_learns_64_examples_by_heart(tmp_path, family):
  texts = made_up_texts(64, **family)
  task = tiny_task({"train": texts, "eval": texts}, **family)
  results = fine_tune(task, QUICK, start=tiny_start(), output_dir=str(tmp_path / "run")).results
  assert results["pearson" if "regression" in family else "accuracy"] >= 0.95


@pytest.mark.slow
def test_a_run_repeats_and_continues(tmp_path):
  settings = dataclasses.replace(SHORT, num_train_epochs=1.0, classifier_dropout=0.1, do_predict=True)
  task, start = small_task(), tiny_start(hidden_dropout_prob=0.1)

  def run(name, **changes):
    now = dataclasses.replace(settings, **changes)
    return fine_tune(task, now, start=start, output_dir=str(tmp_path / name)).results

  several = run("several", seeds=(1, 2))
  assert set(several["seeds"]) == {"1", "2"}
  single = run("single", seeds=(2,))  # As if it had been alone.
  assert {k: v for k, v in single.items() if k in ("accuracy", "f1", "loss")} == {
    k: v for k, v in several["seeds"]["2"].items() if k in ("accuracy", "f1", "loss")
  }
  first, second = weights(tmp_path / "several/seed_1"), weights(tmp_path / "several/seed_2")
  assert all(np.array_equal(v, second[k]) for k, v in weights(tmp_path / "single").items())
  assert not np.array_equal(first["output_weights"], second["output_weights"])
  # The directory has the medians, and names the best seed's.
  losses = [several["seeds"][s]["loss"] for s in "12"]
  assert several["median"]["loss"] == pytest.approx(np.mean(losses))
  assert several["spread"]["loss"]["min"] == min(losses)
  best = weights(tmp_path / "several" / several["best_run"])
  named = read_checkpoint(str(tmp_path / "several"))
  assert all(np.array_equal(v, best[k]) for k, v in named.variables.items())
  assert (tmp_path / "several/seed_1/predictions_test.tsv").exists()
  # Finished seeds are kept, a new one is trained, one without results is trained again.
  times = {s: (tmp_path / f"several/seed_{s}/metrics.jsonl").stat().st_mtime_ns for s in "12"}
  (tmp_path / "several/seed_2/results.json").unlink()
  more = run("several", seeds=(1, 2, 3))
  now = {s: (tmp_path / f"several/seed_{s}/metrics.jsonl").stat().st_mtime_ns for s in "12"}
  assert times["1"] == now["1"]
  assert times["2"] != now["2"]
  for seed in "12":
    assert more["seeds"][seed]["loss"] == several["seeds"][seed]["loss"]
  assert json.loads((tmp_path / "several/results.json").read_text())["seeds"].keys() == {"1", "2", "3"}


@pytest.mark.slow
def test_evaluation_and_prediction_of_a_finished_run(tmp_path, monkeypatch):
  settings = dataclasses.replace(SHORT, num_train_epochs=1.0)
  predicted = []
  call = Predictor.__call__

  def counted(self, features, *, name=""):
    predicted.append(len(features))
    return call(self, features, name=name)

  monkeypatch.setattr(Predictor, "__call__", counted)
  trained = fine_tune(small_task(), settings, start=tiny_start(), output_dir=str(tmp_path / "run")).results
  assert predicted == [13]  # The outputs of the best weights are there already.
  start = dataclasses.replace(tiny_start(), checkpoint=read_checkpoint(str(tmp_path / "run")))
  later = dataclasses.replace(settings, do_train=False, do_predict=True)
  for place in ("run", "elsewhere"):
    again = fine_tune(small_task(), later, start=start, output_dir=str(tmp_path / place)).results
    assert again["loss"] == pytest.approx(trained["loss"], abs=1e-6)
    assert len((tmp_path / place / "predictions_test.tsv").read_text().splitlines()) == 7
  other = tiny_task({"eval": made_up_texts(5, classes=3)}, classes=3)
  no_predict = dataclasses.replace(later, do_predict=False)
  with pytest.raises(UserError, match="fine-tuned for this task"):
    fine_tune(other, no_predict, start=start, output_dir=str(tmp_path / "third"))
  with pytest.raises(UserError, match="holds one task"):
    fine_tune(small_task(name="other"), later, start=start, output_dir=str(tmp_path / "run"))
  hot = dataclasses.replace(settings, learning_rate=0.1)
  with pytest.raises(UserError, match=r"learning_rate 0.003 → 0.1"):
    fine_tune(small_task(), hot, start=tiny_start(), output_dir=str(tmp_path / "run"))
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine/thesis.tex").write_text("")
  with pytest.raises(UserError, match=r"thesis\.tex"):
    fine_tune(small_task(), settings, start=tiny_start(), output_dir=str(tmp_path / "mine"))


@pytest.mark.slow
def test_only_the_encoder_comes_from_the_checkpoint(tmp_path):
  start = tiny_start()
  model = AlbertForPreTraining(start.config)
  values = {name: variable.numpy() for name, variable in named_variables(model).items()}
  task = small_task()
  # Updates of size 0: the weights that were restored are those that are saved.
  settings = dataclasses.replace(SHORT, num_train_steps=1, num_warmup_steps=0, learning_rate=1e-30)
  checkpoint = read_checkpoint_of(start, values, tmp_path / "pretrained")
  fine_tune(
    task,
    settings,
    start=dataclasses.replace(start, checkpoint=checkpoint),
    output_dir=str(tmp_path / "run"),
  )
  saved = weights(tmp_path / "run")
  encoder = [name for name in saved if name.startswith("bert/")]
  assert len(encoder) == len(saved) - 2
  assert all(np.array_equal(saved[name], values[name]) for name in encoder)
  lacking = {k: v for k, v in values.items() if "ffn_1/intermediate/output/dense/kernel" not in k}
  for variables, message in (
    (lacking, "intermediate/output/dense/kernel"),
    ({"cls/x": np.ones(3)}, "word_embeddings"),
  ):
    broken = dataclasses.replace(start, checkpoint=dataclasses.replace(checkpoint, variables=variables))
    with pytest.raises(UserError, match=message):
      fine_tune(task, settings, start=broken, output_dir=str(tmp_path / message[:5]))


def read_checkpoint_of(start, values, folder):
  from support.synthetic_checkpoint import write_tf1

  return read_checkpoint(write_tf1(folder, start.config, values))


@pytest.mark.slow
def test_lamb_bfloat16_dropout_and_user_callbacks(tmp_path):
  seen = []

  class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      seen.append(sorted(logs))

  settings = dataclasses.replace(
    SHORT, optimizer="lamb", distribution=BFLOAT16, dropout=0.2, bucket_multiple=0
  )
  results = fine_tune(
    small_task(), settings, start=tiny_start(), output_dir=str(tmp_path / "run"), callbacks=[Watch()]
  ).results
  assert np.isfinite(results["loss"])
  by_class = ["val_f1", "val_f1_c0", "val_f1_c1"]
  assert seen == [["loss", "val_accuracy", *by_class, "val_loss"]] * 2
  saved = json.loads((tmp_path / "run/albert_config.json").read_text())
  assert saved["hidden_dropout_prob"] == saved["attention_probs_dropout_prob"] == 0.2
  lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  assert [(line["step"], line["split"]) for line in lines] == [
    (4, "train"),
    (4, "eval"),
    (8, "train"),
    (8, "eval"),
  ]
  assert {"loss", "learning_rate", "examples_per_second"} <= lines[0].keys()


def test_what_cannot_be_trained_is_refused(tmp_path):
  long = tiny_task({"train": made_up_texts(4), "eval": made_up_texts(4)}, max_seq_length=64)
  with pytest.raises(UserError, match="--max_seq_length=40"):
    fine_tune(long, SHORT, start=tiny_start(), output_dir=str(tmp_path / "a"))
  both = dataclasses.replace(SHORT, do_predict=True)
  texts = made_up_texts(4)
  task = tiny_task({"train": texts, "eval": texts})
  with pytest.raises(UserError, match="no test data"):
    fine_tune(task, both, start=tiny_start(), output_dir=str(tmp_path / "b"))
  for changes in ({"seeds": (1, 1)}, {"optimizer": "sgd"}, {"dropout": 1.0}):
    with pytest.raises(UserError):
      dataclasses.replace(SHORT, **changes)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_training(tmp_path):
  task = small_task()
  task.loss = lambda: lambda labels, logits: logits[:, 0] * float("nan")
  with pytest.raises(UserError, match="must stay finite"):
    fine_tune(task, SHORT, start=tiny_start(), output_dir=str(tmp_path / "run"))
