"""Fine-tuning: its start, learning, equal repetitions, the best checkpoint, continuation, files, and refusals."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
from support.run_contents import check_directory, check_run, made_up_table, task_of_tables
from support.stacks import slow_by_default
from support.synthetic_checkpoint import write_tf1
from support.tiny_finetuning import BFLOAT16, QUICK, made_up_texts, tiny_start, tiny_task
from support.tiny_step import EAGER_INPUT, eagerly

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.results import lines, scores
from albert_tf.finetuning.run import fine_tune
from albert_tf.keras_api.tasks import AlbertClassifier
from albert_tf.lock import DirectoryLock
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.runs.settings import DistributionConfig

SHORT = dataclasses.replace(
  QUICK,
  num_train_steps=0,
  num_train_epochs=1.0,
  save_checkpoints_steps=0,
  train_batch_size=4,
  eval_batch_size=4,
)
PREDICT = {"do_train": False, "do_eval": False, "do_predict": True}


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
  return read_checkpoint(str(directory))


def records(directory):
  names = ("run.json", "flags.txt", "task.json", "albert_config.json")
  return {name: (directory / name).read_bytes() for name in names}


@pytest.mark.parametrize(
  "family",
  [
    pytest.param({}, marks=slow_by_default),
    pytest.param({"pair": True, "regression": True}, marks=pytest.mark.slow),
  ],
)
def test_a_tiny_model_learns_64_examples_by_heart(tmp_path, family):
  texts = made_up_texts(64, **family)
  task = tiny_task({"train": texts, "eval": texts}, **family)
  results = run(tmp_path / "run", QUICK, of=task)
  assert results["pearson" if "regression" in family else "accuracy"] >= 0.95


WITH_DROPOUT = dataclasses.replace(SHORT, classifier_dropout=0.1)


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
  """The directory and the results of a run of two seeds."""
  folder = tmp_path_factory.mktemp("seeds") / "several"
  start = tiny_start(hidden_dropout_prob=0.1)
  return folder, run(folder, WITH_DROPOUT, start=start, seeds=(1, 2))


@pytest.mark.slow
def test_a_seed_is_trained_as_if_it_had_been_alone(two_seeds, tmp_path):
  folder, several = two_seeds
  start = tiny_start(hidden_dropout_prob=0.1)
  single = run(tmp_path / "single", WITH_DROPOUT, start=start, seeds=(2,))
  assert scores(single) == scores(several["seeds"]["2"])
  first, second = weights(folder / "seed_1"), weights(folder / "seed_2")
  assert all(np.array_equal(v, second[k]) for k, v in weights(tmp_path / "single").items())
  assert not np.array_equal(first["output_weights"], second["output_weights"])


@pytest.mark.slow
def test_a_directory_of_seeds_has_their_medians_and_names_the_best(two_seeds):
  folder, several = two_seeds
  losses = [several["seeds"][s]["loss"] for s in "12"]
  assert several["median"]["loss"] == pytest.approx(np.mean(losses))
  assert several["spread"]["loss"]["min"] == min(losses)
  assert several["spread"]["loss"]["standard_deviation"] == pytest.approx(np.std(losses, ddof=1))
  assert list(lines(several))[-1] == f"best seed: {several['best_seed']}, in {several['best_run']}/"
  best = weights(folder / several["best_run"])
  named = read_checkpoint(str(folder))
  assert all(np.array_equal(v, best[k]) for k, v in named.variables.items())


@pytest.mark.slow
def test_prediction_of_all_seeds_leaves_what_training_recorded(two_seeds, tmp_path):
  folder = shutil.copytree(two_seeds[0], tmp_path / "several")
  before = records(folder / "seed_1")
  run(folder, start=start_from(folder), seeds=(1, 2), **PREDICT)
  assert records(folder / "seed_1") == before
  assert (folder / "seed_1/predictions_test.tsv").exists()


@pytest.mark.slow
def test_of_seeds_those_without_results_are_trained(two_seeds, tmp_path):
  """Finished seeds are kept, a new one is trained, one without results is trained again."""
  folder = shutil.copytree(two_seeds[0], tmp_path / "several")
  logs = [folder / f"seed_{s}/metrics.jsonl" for s in "12"]
  times = [log.stat().st_mtime_ns for log in logs]
  (folder / "seed_2/results.json").unlink()
  start = tiny_start(hidden_dropout_prob=0.1)
  more = run(folder, WITH_DROPOUT, start=start, seeds=(1, 2, 3))
  assert [log.stat().st_mtime_ns == time for log, time in zip(logs, times, strict=True)] == [1, 0]
  for seed in "12":
    assert more["seeds"][seed]["loss"] == two_seeds[1]["seeds"][seed]["loss"]
  assert json.loads((folder / "results.json").read_text())["seeds"].keys() == {"1", "2", "3"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The directory and the results of a run."""
  folder = tmp_path_factory.mktemp("finished") / "run"
  return folder, run(folder)


@pytest.mark.slow
def test_a_finished_run_answers_with_its_weights_here_and_elsewhere(finished, tmp_path):
  folder = shutil.copytree(finished[0], tmp_path / "run")
  before, own = records(folder), start_from(folder)
  run(folder, of=small_task(max_seq_length=16), start=own, **PREDICT)
  for place in (folder, tmp_path / "elsewhere"):
    again = run(place, start=own, do_train=False, do_predict=True)
    assert again["loss"] == pytest.approx(finished[1]["loss"], abs=1e-6)
    assert len((place / "predictions_test.tsv").read_text().splitlines()) == 7
  assert records(folder) == before
  assert TaskSpec.load(str(folder)).max_seq_length == 40


@pytest.mark.slow
def test_answers_leave_the_results_of_training(finished, tmp_path):
  folder = shutil.copytree(finished[0], tmp_path / "run")
  run(folder, start=start_from(folder), do_train=False, do_predict=True)
  results = json.loads((folder / "results.json").read_text())
  assert results["init_checkpoint"] == "random weights"
  assert results["best_step"] == finished[1]["best_step"]
  assert run(folder)["train_steps"] == 4


@pytest.mark.slow
def test_a_finished_run_is_not_another_one(finished):
  folder = finished[0]
  before, own = (folder / "results.json").read_bytes(), start_from(folder)
  for message, options in {
    r"learning_rate 0.003 → 0.1": {"learning_rate": 0.1},
    r"content of train examples .* → ": {"of": small_task(train_seed=8)},
    r"Received: .*'tiny', for 'other'": {"of": small_task(name="other"), "do_train": False},
    r"run_b/checkpoints.*--init_checkpoint": {
      "start": dataclasses.replace(own, path=f"{folder}_b/checkpoints/best/model.ckpt-4"),
      "do_train": False,
    },
  }.items():
    with pytest.raises(UserError, match=message):
      run(folder, **options)
  assert (folder / "results.json").read_bytes() == before


@pytest.mark.slow
def test_weights_of_one_task_do_not_answer_another(finished, tmp_path):
  """Two tasks of GLUE may have the same labels, so that the weights of one fit the other."""
  own = start_from(finished[0])
  with pytest.raises(UserError, match=r"Received: .*'tiny', for 'sst-2' \(name"):
    run(tmp_path / "out", of=small_task(name="sst-2"), start=own, **PREDICT)
  with pytest.raises(UserError, match=r"label_names \('c0', 'c1'\) → \('c0', 'c1', 'c2'\)"):
    run(tmp_path / "out", of=small_task(classes=3), start=own, **PREDICT)
  assert not (tmp_path / "out").exists()
  # A table of one's own may be of any task.
  run(tmp_path / "out", of=small_task(name="custom"), start=own, **PREDICT)
  assert (tmp_path / "out/predictions_test.tsv").exists()


@pytest.mark.slow
def test_only_the_encoder_comes_from_the_checkpoint(tmp_path):
  start = tiny_start()
  model = AlbertForPreTraining(start.config)
  values = {name: variable.numpy() for name, variable in named_variables(model).items()}
  checkpoint = read_checkpoint(write_tf1(tmp_path / "pretrained", start.config, values))
  # Updates of size 0: the weights that were restored are those that are saved.
  settings = dataclasses.replace(SHORT, num_train_steps=1, num_warmup_steps=0, learning_rate=1e-30)
  run(tmp_path / "run", settings, start=checkpoint)
  saved = weights(tmp_path / "run")
  encoder = [name for name in saved if name.startswith("bert/")]
  assert len(encoder) == len(saved) - 2
  assert all(np.array_equal(saved[name], values[name]) for name in encoder)
  lacking = {k: v for k, v in values.items() if "ffn_1/intermediate/output/dense/kernel" not in k}
  broken = dataclasses.replace(checkpoint, variables=lacking)
  with pytest.raises(UserError, match="intermediate/output/dense/kernel"):
    run(tmp_path / "broken", settings, start=broken)


@pytest.mark.slow
def test_a_new_head_may_have_a_new_pooler(tmp_path, caplog):
  """Hugging Face's masked-LM models have none."""
  start = tiny_start()
  of_masked_lm = {k: v for k, v in start.variables.items() if not k.startswith("bert/pooler/")}
  start = dataclasses.replace(start, variables=of_masked_lm)
  run(tmp_path / "run", start=start)
  assert "bert/pooler/dense/kernel" in weights(tmp_path / "run")
  with pytest.raises(UserError, match=r"random weights, missing: bert/pooler/dense/kernel"):
    run(tmp_path / "frozen", start=start, freeze_encoder=True)
  assert AlbertClassifier.from_pretrained(start, num_labels=2).built
  assert "has no pooler" in caplog.text
  fine_tuned = start_from(tmp_path / "run")
  lacking = fine_tuned.variables.keys() - of_masked_lm.keys() - {"output_weights", "output_bias"}
  rest = {k: v for k, v in fine_tuned.variables.items() if k not in lacking}
  with pytest.raises(UserError, match="missing: bert/pooler/dense/kernel"):
    AlbertClassifier.from_pretrained(dataclasses.replace(fine_tuned, variables=rest))


@pytest.mark.slow
def test_the_head_of_the_same_task_is_kept(finished, tmp_path):
  before, start = weights(finished[0]), start_from(finished[0])
  head = {"output_weights", "output_bias"}
  # Updates of size 0, as above.
  settings = dataclasses.replace(SHORT, num_train_steps=1, num_warmup_steps=0, learning_rate=1e-30)
  run(tmp_path / "same", settings, start=start)
  run(tmp_path / "own_table", settings, start=start, of=small_task(name="custom"))
  for name in ("same", "own_table"):
    after = weights(tmp_path / name)
    assert all(np.array_equal(before[name], after[name]) for name in before)
  run(tmp_path / "other", settings, start=start, of=small_task(name="sst-2"))
  after = weights(tmp_path / "other")
  assert {name for name in before if not np.array_equal(before[name], after[name])} == head


@pytest.mark.slow
def test_a_frozen_encoder_keeps_its_weights(tmp_path):
  run(tmp_path / "first")
  start = start_from(tmp_path / "first")
  before = weights(tmp_path / "first")
  run(tmp_path / "frozen", start=start, freeze_encoder=True, learning_rate=0.1)
  after = weights(tmp_path / "frozen")
  changed = {name for name in before if not np.array_equal(before[name], after[name])}
  assert changed == {"output_weights", "output_bias"}


@pytest.mark.slow
def test_bfloat16_dropout_and_user_callbacks(tmp_path):
  seen = []

  class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      seen.append(sorted(logs))

  settings = dataclasses.replace(
    SHORT, distribution=BFLOAT16, albert_dropout=0.2, num_train_epochs=2.0
  )  # fmt: skip
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
    "Received: .1, 1.": {"seeds": (1, 1)},
    "num_warmup_steps=9, num_train_steps=4": {"num_warmup_steps": 9, "seeds": (1, 2)},
    r"divisible.*gradient_accumulation_steps=3": {"gradient_accumulation_steps": 3},
    "max_position_embeddings=40": {"of": small_task(max_seq_length=64)},
    "run/seed_1 without .*--seeds": {**PREDICT, "seeds": (1, 2)},
  }.items():
    with pytest.raises(UserError, match=message):
      run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
  (tmp_path / "thesis.tex").write_text("")
  with pytest.raises(UserError, match=r"thesis\.tex"):
    run(tmp_path)


def test_a_compiled_step_on_several_devices_is_refused(tmp_path, mirrored_2):
  compiled = dataclasses.replace(SHORT, distribution=DistributionConfig(use_xla=True))
  with pytest.raises(UserError, match="Received: --use_xla and 2 devices"):
    fine_tune(
      small_task(),
      compiled,
      start=tiny_start(),
      output_dir=str(tmp_path / "run"),
      strategy=mirrored_2,
    )
  assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings(EAGER_INPUT)
def test_weights_that_are_not_finite_are_never_the_best(tmp_path):
  """One update by an immense rate: the loss before it is finite, and so is the accuracy after it."""
  updates = {
    "num_train_steps": 2,
    "num_warmup_steps": 0,
    "save_checkpoints_steps": 1,
    "learning_rate": 1e38,
  }
  with eagerly(), pytest.raises(UserError, match=r"finite.*--learning_rate"):
    run(tmp_path / "run", **updates)
  assert not (tmp_path / "run/results.json").exists()
  assert latest_bundle(str(tmp_path / "run/checkpoints/best")) is None


def test_a_directory_that_another_process_writes_in_is_refused(tmp_path):
  lock = DirectoryLock(str(tmp_path))
  lock.acquire()
  with pytest.raises(UserError, match=rf"Received: {tmp_path}, .*--output_dir"):
    run(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["lock.json"]


# ------------------------------------------------------------------ what a directory shows is of one thing

ONE_UPDATE = dataclasses.replace(SHORT, num_train_steps=1, eval_batch_size=16)
EVALUATE = {"do_train": False}


@pytest.fixture
def without_graphs():
  with eagerly():
    yield


def task_of(**changes):
  tables = {"train": made_up_table("train", 4, seed=5), "eval": made_up_table("dev", 9, seed=6)}
  return task_of_tables(**tables | changes)


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
  """The directory of a run of one update that has answered a table with labels."""
  folder = tmp_path_factory.mktemp("predicted") / "run"
  tests = {"test": made_up_table("first", 5, seed=7)}
  with eagerly():
    run(folder, ONE_UPDATE, of=task_of(**tests), do_predict=True)
  return folder


OTHER_TABLE = made_up_table("other", 8, seed=9)


@pytest.mark.filterwarnings(EAGER_INPUT)
def test_another_table_or_depth_does_not_replace_the_results(predicted):
  trained = check_run(predicted)
  assert "test_accuracy" in trained
  own = start_from(predicted)
  other = task_of(eval=OTHER_TABLE)
  with pytest.raises(UserError, match=r"other \(8 rows, 2 .*dev \(9 rows.*--init_check"):
    run(predicted, ONE_UPDATE, of=other, start=own, **EVALUATE)
  with pytest.raises(UserError, match=r"9 rows, 1 layers.*9 rows, 2 layers"):
    run(predicted, ONE_UPDATE, of=task_of(), start=own, num_hidden_layers=1, **EVALUATE)
  assert check_run(predicted) == trained


@slow_by_default
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_results_and_predictions_are_of_one_table(tmp_path, predicted, without_graphs):
  folder = shutil.copytree(predicted, tmp_path / "run")
  trained = check_run(folder)
  own = start_from(folder)
  other = task_of(eval=OTHER_TABLE)
  # The same again: what is not answered anew stays.
  run(folder, ONE_UPDATE, of=task_of(), start=own, **EVALUATE)
  assert check_run(folder) == trained
  # Other test data, without labels.
  tests = {"test": made_up_table("second", 4, seed=8, labelled=False)}
  run(folder, ONE_UPDATE, of=task_of(**tests), start=own, **PREDICT)
  answered = check_run(folder)
  assert (answered["accuracy"], answered["data"]["test"]["examples"]) == (trained["accuracy"], 4)
  # Elsewhere the other table is evaluated, and the data of the same directory stay together.
  run(tmp_path / "new", ONE_UPDATE, of=other, start=own, **EVALUATE)
  run(tmp_path / "new", ONE_UPDATE, of=task_of(**tests), start=own, **PREDICT)
  assert check_run(tmp_path / "new")["data"].keys() == {"eval", "test"}
  moved = dataclasses.replace(own, path=f"{tmp_path}/else/checkpoints/best/model.ckpt-1")
  with pytest.raises(
    UserError, match=r"Received: .*run/checkpoints.*else/checkpoints.*--init_checkpoint"
  ):
    run(tmp_path / "new", ONE_UPDATE, of=other, start=moved, **EVALUATE)


@slow_by_default
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_seeds_are_added_in_folders_of_their_own(tmp_path, without_graphs):
  folder = tmp_path / "run"
  run(folder, ONE_UPDATE, of=task_of(), seeds=(6,))
  before = records(folder)
  with pytest.raises(UserError, match=r"Received: --seeds=6,4 .*run/seed_6.*--output_dir"):
    run(folder, ONE_UPDATE, of=task_of(), seeds=(6, 4))
  assert records(folder) == before
  (tmp_path / "seed_6").mkdir()
  for path in folder.iterdir():
    path.rename(tmp_path / "seed_6" / path.name)
  (tmp_path / "seed_6").rename(folder / "seed_6")
  trained = (folder / "seed_6/metrics.jsonl").stat().st_mtime_ns
  run(folder, ONE_UPDATE, of=task_of(), seeds=(6, 4))
  assert (folder / "seed_6/metrics.jsonl").stat().st_mtime_ns == trained
  assert check_directory(folder)["seeds"].keys() == {"4", "6"}
  # The weights of another seed would be called those of seed 9.
  with pytest.raises(UserError, match=r"Received: .*run/seed_9 .*--seeds"):
    run(folder, ONE_UPDATE, of=task_of(), start=start_from(folder), seeds=(6, 9), **EVALUATE)
  assert not (folder / "seed_9").exists()
  with pytest.raises(UserError, match=r"--seeds=6 for .*has seed_4, seed_6.*--seeds=4,6"):
    run(folder, ONE_UPDATE, of=task_of(), seeds=(6,))


@pytest.mark.slow
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_seeds_that_answered_other_tests_have_no_median_of_them(tmp_path, without_graphs):
  folder = tmp_path / "run"
  first, second = (task_of(test=made_up_table(name, 5, seed=7)) for name in ("first", "second"))
  both = run(folder, ONE_UPDATE, of=first, seeds=(6, 4), do_predict=True)
  assert (both["data"]["test"]["file"], "test_accuracy" in both["median"]) == ("first", True)
  run(folder / "seed_4", ONE_UPDATE, of=second, start=start_from(folder / "seed_4"), **PREDICT)
  both = run(folder, ONE_UPDATE, of=task_of(), seeds=(6, 4))
  assert (both["data"].keys(), "test_accuracy" in both["median"]) == ({"eval"}, False)
  for seed in (4, 6):
    assert "test" in check_run(folder / f"seed_{seed}")["data"]
