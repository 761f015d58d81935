"""What training recorded stays, whatever is done with the weights later; and edited data is another run."""

import dataclasses
import json
from unittest import mock

import numpy as np
import pytest
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task

from albert_tf.checkpoints import read_checkpoint
from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.fit import fine_tune

SETTINGS = dataclasses.replace(QUICK, num_train_steps=4, eval_steps=2, train_batch_size=4, eval_batch_size=8)


def task(train_seed=5, **options):
  splits = {
    "train": made_up_texts(8, seed=train_seed),
    "eval": made_up_texts(9, seed=6),
    "test": made_up_texts(3, labelled=False, seed=7),
  }
  return tiny_task(splits, **options)


def run(directory, settings=SETTINGS, *, of=None, start=None, **changes):
  return fine_tune(
    of or task(),
    dataclasses.replace(settings, **changes),
    start=start or tiny_start(),
    output_dir=str(directory),
    flags_text=f"--changes={sorted(changes)}",
  ).results


def best_weights(directory):
  return read_bundle(latest_bundle(str(directory / "checkpoints/best")))


def records(directory):
  names = ("run.json", "flags.txt", "task.json", "README.md", "albert_config.json")
  return {name: (directory / name).read_bytes() for name in names}


def scored(*accuracies):
  """A task whose evaluations find these, one after another."""
  made, found = task(), iter(accuracies)
  evaluate = made.evaluate
  made.evaluate = lambda outputs, split="eval": {**evaluate(outputs, split), "accuracy": next(found)}
  made.plot = lambda outputs, path: False  # It would evaluate too.
  return made


@pytest.fixture(scope="module")
def several(tmp_path_factory):
  """Two seeds of which the second is the best one, at update 4."""
  directory = tmp_path_factory.mktemp("several") / "run"
  # Twice in training, then once for the results, for each seed.
  results = run(directory, of=scored(0.1, 0.2, 0.2, 0.1, 0.8, 0.8), seeds=(1, 2))
  assert (results["best_seed"], results["seeds"]["2"]["best_step"]) == (2, 4)
  return directory


@pytest.mark.slow
def test_the_best_of_several_seeds_is_named(several):
  before = records(several / "seed_2")
  named = read_checkpoint(str(several)).variables
  for name, value in best_weights(several / "seed_2").items():
    if name != "global_step":
      np.testing.assert_array_equal(value, named[name], err_msg=name)
  run(several, seeds=(1, 2), do_train=False, do_eval=False, do_predict=True)
  assert records(several / "seed_2") == before
  assert (several / "seed_2/predictions_test.tsv").exists()
  assert json.loads((several / "results.json").read_text())["best_run"] == "seed_2"
  # Seeds 1 and 2 are evaluated once; the third is best at update 2.
  found = run(several, of=scored(0.2, 0.8, 0.9, 0.3, 0.9), seeds=(1, 2, 3))
  assert (found["best_seed"], found["seeds"]["3"]["best_step"]) == (3, 2)
  assert read_checkpoint(str(several)).path == str(several / "seed_3/checkpoints/best/model.ckpt-2")


@pytest.mark.slow
def test_later_commands_leave_what_training_recorded(tmp_path):
  directory = tmp_path / "run"
  trained = run(directory)
  before = records(directory)
  own = dataclasses.replace(tiny_start(), checkpoint=read_checkpoint(str(directory)), source=str(directory))
  later = run(directory, of=task(max_seq_length=16), start=own, do_train=False, do_predict=True)
  assert records(directory) == before
  assert TaskSpec.load(str(directory)).max_seq_length == 40
  results = json.loads((directory / "results.json").read_text())
  assert (
    results["init_checkpoint"] == later["init_checkpoint"] == trained["init_checkpoint"] == "random weights"
  )
  assert results["best_step"] == trained["best_step"]


@pytest.mark.slow
def test_the_weights_of_another_run_are_not_evaluated_here(tmp_path):
  run(tmp_path / "run")
  other = {name: value + 1 for name, value in best_weights(tmp_path / "run").items()}
  checkpoint = dataclasses.replace(read_checkpoint(str(tmp_path / "run")), variables=other)
  start = dataclasses.replace(tiny_start(), checkpoint=checkpoint, source="elsewhere")
  before = (tmp_path / "run/results.json").read_text()
  with pytest.raises(UserError, match=r"its own weights.*elsewhere.*--init_checkpoint"):
    run(tmp_path / "run", start=start, do_train=False)
  assert (tmp_path / "run/results.json").read_text() == before
  same = dataclasses.replace(start, source="random weights")  # What it was trained from.
  run(tmp_path / "run", start=same, do_train=False)


@pytest.mark.slow
def test_edited_data_is_another_run(tmp_path):
  run(tmp_path / "run")
  assert run(tmp_path / "run")["train_steps"] == 4
  with pytest.raises(UserError, match=r"content of train examples .* → "):
    run(tmp_path / "run", of=task(train_seed=8))
  run(tmp_path / "run", of=task(train_seed=8), do_train=False)  # Evaluation does not ask for them.


@pytest.mark.slow
def test_another_tasks_model_does_not_answer(tmp_path):
  """Two of GLUE's tasks may have the same labels, and so the same weights fit both."""
  run(tmp_path / "rte", of=task(name="rte"))
  start = dataclasses.replace(tiny_start(), checkpoint=read_checkpoint(str(tmp_path / "rte")), source="rte")
  predict = {"start": start, "do_train": False, "do_eval": False, "do_predict": True}
  with pytest.raises(UserError, match=r"fine-tuned for this task.*'rte', for 'sst-2' \(name"):
    run(tmp_path / "out", of=task(name="sst-2"), **predict)
  with pytest.raises(UserError, match=r"label_names \('c0', 'c1'\) → \('c0', 'c1', 'c2'\)"):
    run(tmp_path / "out", of=task(name="rte", classes=3), **predict)
  assert not (tmp_path / "out").exists()
  with mock.patch("albert_tf.finetuning.engine.run_directory.logging.warning") as warning:
    run(tmp_path / "out", of=task(name="custom"), **predict)  # A table of one's own may be of any task.
  assert warning.call_args.args[2:] == ("rte", "custom")
  assert (tmp_path / "out/predictions_test.tsv").exists()


def test_what_is_refused_leaves_no_directory(tmp_path):
  for changes, message in (
    ({"learning_rate": -1.0}, "learning_rate must be above 0. Received: -1.0"),
    ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
    ({"clip_norm": float("nan")}, "clip_norm must be at least 0"),
    ({"poly_power": 0.0}, "poly_power must be above 0"),
    ({"eval_steps": -1}, "save_checkpoints_steps must be at least 0"),
    ({"num_warmup_steps": 9}, "warm-up must end within the run"),
  ):
    for seeds in ((1,), (1, 2)):
      with pytest.raises(UserError, match=message):
        run(tmp_path / "run", seeds=seeds, **changes)
      assert not (tmp_path / "run").exists()
