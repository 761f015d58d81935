"""The command on several devices and in several processes: equal losses, and a common end."""

import signal
import time

import pytest
from support.commands.command_runs import (
  end,
  largest_differences,
  reports,
  start,
  start_workers,
  write_inputs,
)
from support.tiny_records import random_examples, write_records

STEPS = 24

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  folder = tmp_path_factory.mktemp("distributed")
  return {
    **write_inputs(folder),
    "output_dir": folder / "one",
    "train_batch_size": 8,
    "eval_batch_size": 4,
    "learning_rate": 0.01,
    "num_train_steps": STEPS,
    "num_warmup_steps": 4,
    "iterations_per_loop": 2,
    "save_checkpoints_steps": 12,
  }


@pytest.fixture(scope="module")
def one_device(flags):
  """The run on one device."""
  status, stderr = end(start(flags))
  assert status == 0, stderr[-2000:]
  return flags["output_dir"]


def test_two_workers_stop_together_on_sigterm_and_continue(flags, one_device):
  """SIGTERM reaches one worker only, not even the chief: both save and end, and the restart ends the run."""
  run = flags["output_dir"].parent / "workers"
  chief, other = workers = start_workers({**flags, "output_dir": run}, 2)
  while not (run / "metrics.jsonl").exists() and chief.poll() is None:
    time.sleep(0.005)
  other.send_signal(signal.SIGTERM)
  for worker in workers:
    status, stderr = end(worker)
    assert status == 143, stderr[-2000:]
  stopped_at = reports(run)[-1]["step"]
  assert stopped_at < STEPS
  assert (run / f"checkpoints/model.ckpt-{stopped_at}.index").exists()

  ends = [end(worker) for worker in start_workers({**flags, "output_dir": run}, 2)]
  assert [status for status, _ in ends] == [0, 0], [stderr[-2000:] for _, stderr in ends]
  assert "held-out at step" in ends[0][1]
  assert (
    "held-out" not in ends[1][1]
  )  # Only the chief speaks, and writes: one file of events a life.
  assert len(list((run / "tensorboard/train").iterdir())) == 2
  assert max(largest_differences(run, one_device)) < 1e-4


def test_a_refusal_ends_both_workers(flags):
  """Only the chief checks the directory; all notice a worker with other records or flags."""
  folder = flags["output_dir"].parent
  (folder / "foreign").mkdir()
  (folder / "foreign/thesis.tex").write_text("mine")
  chief, other = [
    end(worker) for worker in start_workers({**flags, "output_dir": folder / "foreign"}, 2)
  ]
  assert (chief[0], other[0]) == (2, 2)
  assert "holds thesis.tex and no run.json" in chief[1]
  assert "error of another worker" in other[1]

  fewer = {"input_file": write_records(folder / "fewer.tfrecord", random_examples(20, seed=1))}
  run = folder / "differing"
  for change in (fewer, {"learning_rate": 0.02}):
    workers = start_workers({**flags, "output_dir": run}, 2, last_worker=change)
    ends = [end(worker) for worker in workers]
    assert [status for status, _ in ends] == [2, 2]
    assert all("must have the same flags" in stderr for _, stderr in ends)
  assert not run.exists()


def test_a_killed_worker_is_named_and_the_others_end(flags):
  run = flags["output_dir"].parent / "one_dies"
  processes = start_workers({**flags, "output_dir": run, "num_train_steps": 1_000_000}, 2)
  while not (run / "metrics.jsonl").exists():
    assert processes[0].poll() is None
    time.sleep(0.2)
  processes[1].kill()
  end(processes[1])
  status, stderr = end(processes[0])
  assert status == 2
  assert "error: worker 1: " in stderr
  assert "The same command continues from the last checkpoint" in stderr
