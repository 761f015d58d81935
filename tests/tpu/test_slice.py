"""run_pretrain.py as the coordinator of a slice of two hosts: TensorFlow servers, each in a folder of its own."""

import signal
import time

import pytest
from support.commands.child_processes import flags_of
from support.commands.command_runs import end, largest_differences, start, write_inputs
from support.tiny_run import tokenizer
from support.tpu import runs

from albert_tf.errors import EXIT_USER_ERROR

CORES_PER_HOST = 2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  """Records and model by absolute path; the run directory by a relative one, which only the coordinator has."""
  folder = tmp_path_factory.mktemp("slice")
  tokenizer().save_pretrained(str(folder))
  # Fresh masks: each host draws those of its own rows.
  more = f"""
    --spm_model_file={folder}/spm.model --masking=fresh --train_batch_size=16 --eval_batch_size=8 --learning_rate=0.01
    --num_train_steps=12 --num_warmup_steps=2 --iterations_per_loop=2 --save_checkpoints_steps=4
    --mixed_precision=float32
  """
  return folder, write_inputs(folder, vocab_size=tokenizer().vocab_size) | flags_of(more)


@pytest.fixture(scope="module")
def hosts(flags):
  with runs.Slice(flags[0], hosts=2, cores_per_host=CORES_PER_HOST) as made:
    yield made


@pytest.fixture(scope="module")
def one_device(flags):
  folder, common = flags
  run = folder / "one"
  status, stderr = end(start({**common, "output_dir": run}))
  assert status == 0, stderr[-2000:]
  return run


def train(flags, hosts, run, **more):
  folder, common = flags
  own = {**common, "tpu": hosts.tpu, "output_dir": run, **more}
  return runs.start("run_pretrain", (2 * CORES_PER_HOST, own), folder=folder)


def wait_for(process, path):
  while not path.exists():
    assert process.poll() is None, process.communicate()[1][-3000:]
    time.sleep(0.002)


def test_stopped_and_continued_it_equals_one_device(flags, hosts, one_device):
  """Checkpoints, curves and TensorBoard's events are written by the coordinator, none by a host."""
  run = flags[0] / "stopped"
  process = train(flags, hosts, run.name)
  wait_for(process, run / "metrics.jsonl")
  process.send_signal(signal.SIGTERM)
  [stopped] = runs.results(process)
  assert stopped.status == 143, f"{stopped.status}\n{stopped.stderr[-3000:]}"
  [ended] = runs.succeeded(train(flags, hosts, run.name))
  assert "continuing from" in ended.stderr
  assert f"{2 * CORES_PER_HOST} replica(s)" in ended.stderr
  metrics, weights = largest_differences(run, one_device)
  print(f"slice: metrics {metrics:.1e}, weights {weights:.1e}")
  assert metrics < 2e-6
  assert weights < 2e-5
  assert list(run.glob("tensorboard/eval/events*"))
  assert [path for host in flags[0].glob("host_*") for path in host.iterdir()] == []


def test_a_host_that_dies_is_named_and_the_same_command_continues(flags, hosts):
  run = flags[0] / "orphaned"
  more = {"num_train_steps": 60}
  process = train(flags, hosts, run.name, **more)
  wait_for(process, run / "checkpoints/model.ckpt-4.index")
  hosts.kill(1)
  status, stderr = end(process, seconds=180)
  assert status == EXIT_USER_ERROR, stderr[-2000:]
  assert f"worker 1 at {hosts.addresses[1]} no longer answers" in stderr
  [refused] = runs.results(train(flags, hosts, run.name, **more))
  assert refused.status == EXIT_USER_ERROR, refused.status
  assert f"host {hosts.addresses[1]}" in refused.stderr
  hosts.start(1)
  [ended] = runs.succeeded(train(flags, hosts, run.name, **more))
  assert "continuing from" in ended.stderr
