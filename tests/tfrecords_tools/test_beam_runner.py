"""Apache Beam gives the bytes of the local runner, also after failures; and refusals."""

import functools
import pathlib
import subprocess
import sys
import time

import pytest
from support import made_records, tiny_corpus
from support.made_records import contents

from albert_tf.errors import UserError
from tfrecords_tools.pretraining.local import make_locally
from tfrecords_tools.pretraining.settings import RecordSettings

pytest.importorskip("apache_beam")

from support.commands.beam_services import beam_services
from support.commands.child_processes import ending_with_this

from tfrecords_tools.pretraining import beam as beam_runner
from tfrecords_tools.pretraining.beam import make_on_beam

_COMMAND = pathlib.Path(__file__).parents[2] / "tfrecords_tools" / "create_pretraining_data.py"
_CHOICES = RecordSettings(
  max_seq_length=64,
  max_predictions_per_seq=8,
  dupe_factor=2,
  sentence_pair="nsp",  # B of other documents, too.
  num_shards=3,
  eval_fraction=0.1,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Two files of 15 documents, one of them compressed."""
  directory = tmp_path_factory.mktemp("corpus")
  names = ("a.txt", "b.txt.gz")
  return [tiny_corpus.write_documents(directory / name, 15, seed=len(name)) for name in names]


@pytest.fixture
def make_beam(tiny_tokenizer):
  """Makes records with small blocks, on this machine."""
  return functools.partial(
    made_records.make, tokenizer=tiny_tokenizer, settings=_CHOICES, runner=make_on_beam
  )


@pytest.mark.slow
def test_a_failed_pipeline_runs_again_to_the_bytes_of_the_local_runner(
  corpus, make_beam, tmp_path, monkeypatch
):
  make_beam(corpus, tmp_path / "whole", runner=make_locally)
  written = []

  def fail_once(job, name, *arguments):
    if len(written) == 2:
      # As a killed worker leaves it.
      pathlib.Path(job.stage_dir, f"{name}.tmp-01234567").write_bytes(b"half of a file")
      raise RuntimeError("a worker was lost")
    written.append(name)
    return whole(job, name, *arguments)

  whole = beam_runner.write_shard
  monkeypatch.setattr(beam_runner, "write_shard", fail_once)
  with pytest.raises(RuntimeError, match="a worker was lost"):
    make_beam(corpus, tmp_path / "out")
  monkeypatch.setattr(beam_runner, "write_shard", whole)
  make_beam(corpus, tmp_path / "out")
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_mistake_found_by_a_worker_is_one_message(make_beam, tmp_path):
  text = tmp_path / "text.txt"
  text.write_bytes(b"\x7fELF\0")
  with pytest.raises(UserError, match=rf"Received: {text},.*--input_format=parquet\.$"):
    make_beam([str(text)], tmp_path / "out")


def test_workers_that_do_not_see_the_work_are_an_error(corpus, make_beam, tmp_path, monkeypatch):
  """As in a container: the directory is there for the command, and empty for a worker."""
  monkeypatch.setattr(beam_runner, "PLAN_NAME", "no-such-plan.json")
  with pytest.raises(UserError, match=rf"--work_dir.*Received: {tmp_path}/out/_unfinished,"):
    make_beam(corpus, tmp_path / "out")


def test_a_file_larger_than_a_workers_memory_is_refused(corpus, make_beam, tmp_path, monkeypatch):
  monkeypatch.setattr(beam_runner, "LARGEST_SHARD", 4_000)
  with pytest.raises(UserError, match=r"Received: --num_shards=3 .*--num_shards=[4-9] "):
    make_beam(corpus, tmp_path / "out")


def _words(corpus, model, output_dir, beam_options, **more):
  words = [sys.executable, str(_COMMAND), *made_records.flags(corpus, model, output_dir, **more)]
  return [*words, "--runner=beam", "--", *beam_options] if beam_options else words


@pytest.mark.slow
def test_a_killed_worker_leaves_nothing_that_counts(corpus, tiny_model, tmp_path):
  """Two processes run in addition to the command, as on a cluster: a job service, and a pool of workers.

  Beam's own job service waits for a lost worker for ever, others repeat or fail; so the command is ended too, in
  the middle of writing, and given again.
  """
  # Writing them lasts long enough to be cut short.
  files = {"num_shards": 80}
  out = tmp_path / "out"
  with beam_services(tmp_path / "first.log", workers=2) as services:
    command = subprocess.Popen(
      ending_with_this(_words(corpus, tiny_model, out, services.options, **files))
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("_unfinished/*.tfrecord.json")):
      assert command.poll() is None, (tmp_path / "first.log").read_text()
      assert time.monotonic() < deadline
      time.sleep(0.01)
    (worker,) = services.workers()
    worker.kill()
    command.kill()
    command.wait()
  assert 0 < len(list(out.glob("_unfinished/*.tfrecord.json"))) < 89
  assert [path.name for path in out.iterdir()] == ["_unfinished"]
  with beam_services(tmp_path / "second.log", workers=2) as services:
    subprocess.run(
      _words(corpus, tiny_model, out, services.options, **files), check=True, timeout=120
    )
  subprocess.run(
    _words(corpus, tiny_model, tmp_path / "local", [], **files), check=True, timeout=120
  )
  assert contents(out) == contents(tmp_path / "local")
