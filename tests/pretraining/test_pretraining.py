"""Complete runs: output files, exact resume, refusals."""

import dataclasses
import errno
import io
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.stacks import slow_by_default
from support.tiny_pretraining import (
  NUM_STEPS,
  after_report,
  assert_equal_ends,
  newest_values,
  preempt,
  tiny_settings,
  with_changes,
)
from support.tiny_records import random_examples, tiny_config, write_records
from support.tiny_step import EAGER_INPUT, eagerly
import tensorflow as tf

from albert_tf.checkpoints.bundle import (
  checkpoint_steps,
  latest_checkpoint,
  read_bundle,
  write_bundle,
)
from albert_tf.checkpoints.checkpoint import find_checkpoint, load_weights
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.optim.optimizer import Optimizer
from albert_tf.pretraining.evaluation import Evaluator
from albert_tf.pretraining.loop import next_boundary
from albert_tf.pretraining.reporter import Reporter
from albert_tf.pretraining.run import run_pretraining
from albert_tf.records.masking import MaskingConfig
from albert_tf.runs import checkpoint_store as checkpoints
from albert_tf.runs.checkpoint_store import CheckpointStore
from albert_tf.runs.interruption import stop_on_signal
from albert_tf.runs.metrics_log import read_metrics
from albert_tf.runs.settings import DistributionConfig
from albert_tf.settings import fields_of

METRIC_KEYS = {*"step split loss masked_lm_loss masked_lm_accuracy".split()}
METRIC_KEYS |= {"sentence_order_loss", "sentence_order_accuracy"}
TRAIN_KEYS = METRIC_KEYS | {*"learning_rate gradient_norm weight_norm update_norm".split()}
TRAIN_KEYS |= {*"examples_per_second tokens_per_second model_tflops_per_second input_share".split()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A folder with records and the uninterrupted run `whole`."""
  folder = tmp_path_factory.mktemp("runs")
  result = run_pretraining(tiny_settings(folder, "whole"))
  assert result.step == NUM_STEPS
  assert not result.interrupted
  return folder


def test_a_run_leaves_what_it_promises(finished):
  run = finished / "whole"
  names = "run.json albert_config.json metrics.jsonl curves.png checkpoints tensorboard"
  assert {*names.split()} <= {path.name for path in run.iterdir()}
  reports = read_metrics(f"{run}/metrics.jsonl")
  assert [r["step"] for r in reports if r["split"] == "train"] == [2, 4, 6, 8, 10, 12]
  held_out = [r for r in reports if r["split"] == "eval"]
  assert [r["step"] for r in held_out] == [4, 8, 12]
  assert all(set(r) >= (TRAIN_KEYS if r["split"] == "train" else METRIC_KEYS) for r in reports)
  values = newest_values(run)
  assert values["global_step"] == NUM_STEPS
  assert values["albert_tf/examples_seen"] == 8 * NUM_STEPS
  assert "bert/pooler/dense/kernel/adam_m" in values
  assert find_checkpoint(str(run)) == f"{run}/checkpoints/model.ckpt-{NUM_STEPS}"


def test_held_out_metrics_are_means_over_all_real_predictions(finished):
  """13 examples in batches of 4; the padding of the last batch must not count."""
  reports = read_metrics(f"{finished}/whole/metrics.jsonl")
  last = [r for r in reports if r["split"] == "eval"][-1]
  model = AlbertForPreTraining(tiny_config())
  load_weights(model, str(finished / "whole/checkpoints/model.ckpt-12.index"))
  examples = random_examples(13, seed=2)
  batch = {key: np.stack([example[key] for example in examples]) for key in examples[0]}
  weights, labels = batch.pop("masked_lm_weights"), batch["masked_lm_ids"]
  outputs = model({key: tf.constant(value, tf.int32) for key, value in batch.items()})
  log_probs = tf.nn.log_softmax(outputs["mlm_logits"]).numpy()
  losses = -np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
  hits = log_probs.argmax(-1) == labels
  order = outputs["sop_logits"].numpy().argmax(-1) == batch["next_sentence_labels"][:, 0]
  expected = {
    "masked_lm_loss": (losses * weights).sum() / weights.sum(),
    "masked_lm_accuracy": (hits * weights).sum() / weights.sum(),
    "sentence_order_accuracy": order.mean(),
  }
  assert {name: last[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@slow_by_default
def test_sigterm_saves_and_the_same_settings_continue_bit_for_bit(finished, capfd):
  settings = tiny_settings(finished, "preempted")
  with after_report(6, preempt):
    result = run_pretraining(settings)
  assert (result.step, result.interrupted) == (6, True)
  checkpoint = latest_checkpoint(f"{settings.output_dir}/checkpoints")
  assert checkpoint.endswith("model.ckpt-6")
  result = run_pretraining(settings)
  assert (result.step, result.interrupted) == (NUM_STEPS, False)
  assert "continuing from step 6 (48 examples)" in capfd.readouterr().err
  assert_equal_ends(finished / "whole", settings.output_dir)
  log = read_metrics(f"{settings.output_dir}/metrics.jsonl")
  assert [r["step"] for r in log] == sorted(r["step"] for r in log)
  assert [r["step"] for r in log if r["split"] == "eval"] == [4, 8, NUM_STEPS]


@pytest.mark.slow
def test_sigterm_during_an_evaluation_makes_no_further_update(finished, monkeypatch):
  monkeypatch.setattr(Reporter, "eval", lambda *_: preempt())
  result = run_pretraining(tiny_settings(finished, "preempted_in_evaluation"))
  assert (result.step, result.interrupted) == (4, True)


@pytest.mark.slow
def test_killed_between_checkpoint_and_evaluation_the_restart_evaluates(finished, monkeypatch):
  settings = tiny_settings(finished, "unevaluated")
  evaluate = Evaluator.__call__
  evaluations = []

  def killed_at_8(self):
    if len(evaluations) == 1:
      raise KeyboardInterrupt
    evaluations.append(evaluate(self))
    return evaluations[-1]

  monkeypatch.setattr(Evaluator, "__call__", killed_at_8)
  with pytest.raises(KeyboardInterrupt):
    run_pretraining(settings)
  monkeypatch.undo()
  assert latest_checkpoint(f"{settings.output_dir}/checkpoints").endswith("model.ckpt-8")
  with monkeypatch.context() as patch:
    patch.setattr(Optimizer, "apply", None)  # Nothing is left to train in a run of 8 steps.
    result = run_pretraining(with_changes(settings, num_train_steps=8))
  whole, again = (
    read_metrics(f"{run}/metrics.jsonl") for run in (finished / "whole", settings.output_dir)
  )
  evaluated = [r for r in whole if r["split"] == "eval"][:2]
  assert [r for r in again if r["split"] == "eval"] == evaluated
  assert result.evaluation["masked_lm_loss"] == evaluated[1]["masked_lm_loss"]
  assert run_pretraining(settings).step == NUM_STEPS
  assert_equal_ends(finished / "whole", settings.output_dir)


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_killed_at_twenty_moments_the_weights_are_those_of_an_undisturbed_run(finished):
  """Kills are in turn at random moments and inside a checkpoint write."""
  script = pathlib.Path(__file__).parent.parent / "support/tiny_pretraining.py"
  ended = subprocess.run(
    [sys.executable, str(script), str(finished), "20", "7"],
    env={**os.environ, "PYTHONPATH": str(script.parent.parent)},
    timeout=600,
    capture_output=True,
    text=True,
  )
  assert ended.returncode == 0, ended.stderr[-2000:]
  summary = json.loads(ended.stdout.splitlines()[-1])
  assert summary["kills"] == 20
  assert summary["inside_writes"] >= 2
  assert_equal_ends(finished / "whole", finished / "killed")
  assert not [path for path in (finished / "killed").glob("**/*") if ".tmp-" in path.name]
  assert checkpoint_steps(f"{finished}/killed/checkpoints") == [11, 12]


@pytest.mark.slow
def test_continuing_with_another_batch_size_keeps_the_data_order(finished):
  settings = tiny_settings(finished, "resized", save_checkpoints_steps=2, eval_input_files=())
  run_pretraining(with_changes(settings, num_train_steps=4))
  run_pretraining(with_changes(settings, num_train_steps=6, global_batch_size=16))
  assert newest_values(settings.output_dir)["albert_tf/examples_seen"] == 4 * 8 + 2 * 16


@pytest.mark.filterwarnings(EAGER_INPUT)
def test_a_run_with_muon_continues_bit_for_bit_with_the_same_rates(tmp_path):
  changes = {"name": "muon", "muon_learning_rate": 0.02, "eval_input_files": ()}
  changes |= {"model": tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.1)}
  changes |= {"num_train_steps": 2, "num_warmup_steps": 1, "iterations_per_loop": 1}
  whole, stopped = (tiny_settings(tmp_path, name, **changes) for name in ("whole", "stopped"))
  with eagerly():
    run_pretraining(whole)
    with after_report(1, preempt):
      assert run_pretraining(stopped).step == 1
    # Both rates and the momentum are of the run.
    for other in ({"learning_rate": 0.02}, {"muon_momentum": 0.9}):
      assert with_changes(stopped, **other).identity("") != stopped.identity("")
    with pytest.raises(UserError, match=r"muon_learning_rate 0\.02 → 0\.01"):
      run_pretraining(with_changes(stopped, muon_learning_rate=0.01))
    assert run_pretraining(stopped).step == 2
  assert_equal_ends(whole.output_dir, stopped.output_dir)
  # A matrix of the block has its momentum alone.
  values = newest_values(whole.output_dir)
  one_slot = {
    name for name in values if f"{name}/adam_m" in values and f"{name}/adam_v" not in values
  }
  assert len(one_slot) == 6
  assert all("transformer" in name and name.endswith("kernel") for name in one_slot)


@pytest.mark.filterwarnings(EAGER_INPUT)
@pytest.mark.parametrize("name", ["lamb", pytest.param("muon", marks=slow_by_default)])
def test_init_checkpoint_gives_weights_but_not_the_optimizer(finished, name):
  before, kernel = newest_values(finished / "whole"), "bert/pooler/dense/kernel"
  changes = {"init_checkpoint": str(finished / "whole"), "eval_input_files": ()}
  changes |= {"learning_rate": 1e-12, "num_train_steps": 2, "num_warmup_steps": 1}
  settings = tiny_settings(finished, f"warm_started_{name}", name=name, **changes)
  with eagerly():
    run_pretraining(settings)
  warm = newest_values(settings.output_dir)
  assert warm["global_step"] == 2  # Counted from 0.
  np.testing.assert_allclose(warm[kernel], before[kernel], atol=1e-6)
  assert np.abs(before[f"{kernel}/adam_m"] - warm[f"{kernel}/adam_m"]).max() > 0


def test_the_directory_of_another_run_is_refused(finished):
  settings = tiny_settings(finished, "whole")
  wider = dataclasses.replace(settings.model, intermediate_size=24)
  before = (finished / "whole/run.json").read_text()
  for changes, received in (
    ({"seed": 99}, r"seed 12345 → 99"),
    ({"model": wider}, r"intermediate_size 20 → 24"),
    ({"input_files": settings.eval_input_files}, r"record_content \w+ → \w+"),
    ({"sentence_task": ""}, "sentence_loss on → off"),
    ({"masked_lm_only_steps": 3}, "masked_lm_only_steps None → 3"),
    ({"name": "muon"}, "optimizer lamb → muon"),
  ):
    with pytest.raises(UserError, match=received):
      run_pretraining(with_changes(settings, **changes))
  assert (finished / "whole/run.json").read_text() == before


def changed_setting(field, value):
  """Another value of a setting."""
  if field.choices:
    return next(choice for choice in reversed(field.choices) if choice != value)
  if field.type is bool:
    return not value
  if field.name in ("train_depths", "profile_steps"):
    return (1, 2)
  if field.type is str:
    return "another"
  if field.type is int:
    return value + 1
  # Half of it is within the bounds of every setting; 0 and None have none.
  return value / 2 if value else 0.5


def test_the_page_tells_which_settings_may_change_in_a_continued_run(tmp_path):
  settings = tiny_settings(tmp_path, "run", distribution=DistributionConfig())

  def is_fixed(other):
    return other.identity("records") != settings.identity("records")

  # A rate of Muon needs Muon.
  muon = with_changes(settings, name="muon")
  faster = with_changes(muon, muon_learning_rate=0.5)
  fixed = {"muon_learning_rate": faster.identity("") != muon.identity("")}
  # Flags of the groups, and of the settings themselves.
  for group in ("step", "optimizer", "distribution", ""):
    part = getattr(settings, group) if group else settings
    for field in fields_of(type(part)):
      if field.flag and field.flag not in fixed:
        value = changed_setting(field, getattr(part, field.name))
        other = dataclasses.replace(part, **{field.name: value})
        if group:
          other = dataclasses.replace(settings, **{group: other})
        fixed[field.flag] = is_fixed(other)
  # Flags of the command, from which it finds other settings.
  masking = MaskingConfig(masked_lm_prob=0.2, max_predictions_per_seq=3, ngram_probabilities=(1.0,))
  fresh = dataclasses.replace(settings, tokenizer_path="spm.model", masking=masking)
  more = dataclasses.replace(masking, masked_lm_prob=0.4)
  fixed |= {
    "masking": is_fixed(fresh),
    "masked_lm_prob": dataclasses.replace(fresh, masking=more).identity("") != fresh.identity(""),
    "sentence_loss": is_fixed(with_changes(settings, sentence_task="")),
    "eval_input_file": is_fixed(dataclasses.replace(settings, eval_input_files=())),
    "input_file": settings.identity("other records") != settings.identity("records"),
  }
  # These two say which run it is, and where a new one begins.
  del fixed["output_dir"], fixed["init_checkpoint"]

  page = pathlib.Path(__file__).parents[2] / "docs/training.md"
  table = page.read_text().partition("| may change |")[2].partition("\n\n")[0]
  told = {}
  for row in table.splitlines()[2:]:
    for is_right, cell in enumerate(row.strip("|").split(" | ")):
      told |= dict.fromkeys(re.findall(r"`--(\w+)`", cell), bool(is_right))
  assert told == fixed


def test_mistakes_are_refused_before_anything_is_written(finished, tmp_path):
  foreign, empty = tmp_path / "foreign", tmp_path / "empty.tfrecord"
  foreign.mkdir()
  (foreign / "thesis.tex").write_text("mine")
  empty.touch()
  settings = tiny_settings(finished, "refused")
  few = write_records(tmp_path / "few.tfrecord", random_examples(5, seed=4))
  for changes, received in (
    ({"output_dir": str(foreign)}, "thesis.tex"),
    ({"input_files": (str(empty),)}, r"empty\.tfrecord"),
    ({"input_files": (few,)}, "Received: 5 records, train_batch_size=8"),
    ({"model": tiny_config(vocab_size=30)}, r"3\d in (input_ids|masked_lm_ids) of .*vocab_size=30"),
    ({"max_seq_length": 12}, "Received: 10 values of input_ids, .* 12 "),
    ({"init_checkpoint": str(tmp_path / "nothing")}, "Received: .*nothing"),
  ):
    with pytest.raises(UserError, match=received):
      run_pretraining(dataclasses.replace(settings, **changes))
  assert not pathlib.Path(settings.output_dir).exists()
  assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_a_full_disk_during_a_checkpoint_leaves_the_old_one(finished, monkeypatch):
  settings = tiny_settings(finished, "full_disk", eval_input_files=())
  save = tf.raw_ops.SaveV2

  def full_after_first(*, prefix, **kwargs):
    save(prefix=prefix, **kwargs)
    if "model.ckpt-8" in prefix:
      raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

  monkeypatch.setattr(tf.raw_ops, "SaveV2", full_after_first)
  with pytest.raises(UserError, match=r"Received: .*model\.ckpt-8"):
    run_pretraining(settings)
  monkeypatch.undo()
  folder = pathlib.Path(settings.output_dir, "checkpoints")
  assert {path.name for path in folder.iterdir() if path.is_file()} == {
    "model.ckpt-4.index",
    "model.ckpt-4.data-00000-of-00001",
  }
  assert run_pretraining(settings).step == NUM_STEPS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request(number, capsys):
  # A process in the background may have been started with Control-C ignored.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  before = signal.getsignal(number)
  with stop_on_signal() as stop:
    assert not stop.is_set()
    os.kill(os.getpid(), number)
    assert stop.is_set()
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
  assert signal.getsignal(number) is before
  assert f"{number.name}: saving and stopping" in capsys.readouterr().err


_HANGS_UP = """
import signal
import sys
import time

from albert_tf.runs.interruption import stop_on_signal

# The tests may have been started with `nohup`.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with stop_on_signal() as stop:
  print("ready", flush=True)
  while not stop.is_set():
    time.sleep(0.01)
  print("a report", flush=True)
  open(sys.argv[1], "w").close()
"""


def test_a_run_is_saved_when_its_terminal_is_gone(tmp_path):
  """As when a machine shuts down: SIGHUP, and nobody reads the output."""
  terminal, its_end = pty.openpty()
  command = [sys.executable, "-c", _HANGS_UP, str(tmp_path / "saved")]
  with subprocess.Popen(command, stdout=its_end, stderr=its_end) as process:
    os.close(its_end)
    # To the end of the line: a terminal that is gone before is an error of `print`.
    while not os.read(terminal, 100).endswith(b"\n"):
      pass
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
  assert process.returncode == 0
  assert (tmp_path / "saved").exists()


class _LostTerminal(io.StringIO):
  """Fails from the run's first line on."""

  def flush(self):
    if "training records" in self.getvalue():
      raise OSError(errno.EIO, "Input/output error")


@pytest.mark.filterwarnings(EAGER_INPUT)
def test_a_run_goes_on_when_nobody_can_read_its_reports(tmp_path, monkeypatch):
  silenced = []
  monkeypatch.setattr(
    "albert_tf.pretraining.reporter.silence_lost_output", lambda: silenced.append(True)
  )
  monkeypatch.setattr("sys.stderr", _LostTerminal())
  settings = tiny_settings(tmp_path, "run", num_train_steps=2, num_warmup_steps=1)
  with eagerly():
    run_pretraining(settings)
  assert silenced
  assert read_metrics(f"{settings.output_dir}/metrics.jsonl")[-1]["step"] == 2


# A change of numerics edits them in the same commit and says why.
LOSSES = [
  4.303734, 4.287329, 4.275873, 4.232227, 4.268467, 4.509827, 4.394885, 4.260716, 4.194399, 4.210893,
  4.007657, 3.994106, 3.935208, 4.182390, 4.200297, 3.998622, 4.227139, 4.313705, 3.989796, 4.017126,
]  # fmt: skip


@slow_by_default
def test_twenty_updates_report_the_pinned_losses(tmp_path):
  steps = {"num_train_steps": 20, "num_warmup_steps": 4, "save_checkpoints_steps": 20}
  settings = tiny_settings(
    tmp_path,
    "run",
    model=tiny_config(),
    iterations_per_loop=1,
    eval_input_files=(),
    learning_rate=0.03,
    **steps,
  )
  run_pretraining(settings)
  reports = read_metrics(f"{settings.output_dir}/metrics.jsonl")
  np.testing.assert_allclose([report["loss"] for report in reports], LOSSES, rtol=1e-4)


def boundaries(settings, step=0):
  found = []
  while step < settings.num_train_steps:
    step = next_boundary(settings, step)
    found.append(step)
  return found


def test_chunks_end_at_the_edges_of_the_trace(tmp_path):
  settings = tiny_settings(tmp_path, "run", iterations_per_loop=5, save_checkpoints_steps=6)
  assert boundaries(settings) == [5, 6, 10, 12]
  assert boundaries(dataclasses.replace(settings, profile_steps=(3, 8))) == [2, 5, 6, 8, 10, 12]
  assert boundaries(dataclasses.replace(settings, profile_steps=(1, 12))) == [5, 6, 10, 12]
  assert boundaries(dataclasses.replace(settings, profile_steps=(7, 7)), step=6) == [7, 10, 12]


def test_a_range_outside_the_run_is_refused(tmp_path):
  for steps in ((0, 3), (5, 4), (10, 13), (1,), (1, 2, 3)):
    with pytest.raises(UserError, match=f"Received: {','.join(map(str, steps))}; .* 1 to 12"):
      tiny_settings(tmp_path, "run", profile_steps=steps)


@pytest.mark.slow
def test_a_run_writes_one_trace_of_the_updates_asked_for(tmp_path, capfd):
  settings = tiny_settings(tmp_path, "run", eval_input_files=(), profile_steps=(3, 7))
  assert run_pretraining(settings).step == 12
  folder = pathlib.Path(settings.output_dir, "tensorboard/profile/plugins/profile")
  [trace] = folder.glob("*/*.xplane.pb")
  assert b"updates" in trace.read_bytes()
  assert "wrote a trace below" in capfd.readouterr().err


def test_training_goes_on_while_the_values_of_the_moment_are_written(tmp_path, monkeypatch):
  opened = threading.Event()

  def write_when_opened(prefix, values):
    assert opened.wait(20)
    write_bundle(prefix, values)

  monkeypatch.setattr(checkpoints, "write_bundle", write_when_opened)
  variable = tf.Variable([1.0, 2.0])
  store = CheckpointStore(str(tmp_path), {"weights": variable}, keep=2)
  store.save(1, examples_seen=8)
  variable.assign([9.0, 9.0])
  store.check()
  assert store.last is None
  opened.set()
  store.wait()
  assert store.last == f"{tmp_path}/model.ckpt-1"
  values = read_bundle(store.last)
  np.testing.assert_array_equal(values["weights"], [1.0, 2.0])
  assert values["albert_tf/examples_seen"] == 8


def test_the_newest_stay_also_after_a_restart():
  folder = "ram://kept"  # Counts as a bucket.
  variable = tf.Variable([1.0, 2.0])
  for steps in (range(1, 6), range(6, 12)):
    store = CheckpointStore(folder, {"weights": variable}, keep=2)
    for step in steps:
      store.save(step, examples_seen=0)
    store.wait()
    store.close()
    store.tidy()
  assert checkpoint_steps(folder) == [10, 11]
  assert all(read_bundle(f"{folder}/model.ckpt-{step}") for step in checkpoint_steps(folder))
