"""Held-out metrics of each named source, beside those of the whole."""

import io
import pathlib

import pytest
from support.tiny_pretraining import tiny_settings
from support.tiny_records import SPEC, VOCAB_SIZE, random_examples, tiny_config, write_records
import tensorflow as tf

from albert_tf.modeling import AlbertForPreTraining
from albert_tf.pipelines.order import ORDER_VERSION
from albert_tf.records import Manifest, RecordFile
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.held_out import share_steps
from albert_tf.training.inputs import checked_input
from albert_tf.training.reporting.progress import Progress

_COUNTS = {"books": 5, "wiki": 9, "none": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Held-out files of three sources, one of them empty, with the manifest that says so."""
  folder = tmp_path_factory.mktemp("records")
  files = []
  for number, (source, count) in enumerate(_COUNTS.items()):
    name = f"eval-{source}-00000-of-00001.tfrecord"
    write_records(folder / name, random_examples(count, seed=number))
    files.append(RecordFile(name, "eval", count, (folder / name).stat().st_size, "", source=source))
  described = Manifest(
    VOCAB_SIZE, "", SPEC.max_seq_length, SPEC.max_predictions_per_seq, "sop", 1, tuple(files)
  )
  described.save(str(folder))
  return folder


@pytest.fixture(scope="module")
def model() -> AlbertForPreTraining:
  tf.keras.utils.set_random_seed(1)
  return AlbertForPreTraining(tiny_config())


def _evaluator(folder: pathlib.Path, paths: list[str], model: AlbertForPreTraining) -> Evaluator:
  settings = tiny_settings(folder, "run", eval_input_files=tuple(paths))
  inputs = checked_input(
    settings, tf.distribute.get_strategy(), order_version=ORDER_VERSION, write=False, says=False
  )
  evaluator = inputs.evaluator(model)
  assert evaluator is not None
  return evaluator


def test_the_whole_is_the_sum_of_the_sources(folder, model, tmp_path):
  paths = [str(folder / f"eval-{source}-00000-of-00001.tfrecord") for source in _COUNTS]
  by_source = _evaluator(folder, paths, model)
  found = by_source()
  bare = []  # The same records where no manifest names a source.
  for path in paths[:2]:
    bare.append(str(tmp_path / pathlib.Path(path).name))
    pathlib.Path(bare[-1]).write_bytes(pathlib.Path(path).read_bytes())
  whole = _evaluator(folder, bare, model)()
  assert set(found) == {*whole, *(f"{name}/{source}" for name in whole for source in ("books", "wiki"))}
  assert {name: found[name] for name in whole} == pytest.approx(whole, rel=1e-5)
  books = _evaluator(folder, bare[:1], model)()
  assert {name: found[f"{name}/books"] for name in books} == pytest.approx(books, rel=1e-5)
  assert found["masked_lm_loss/books"] != found["masked_lm_loss/wiki"]
  assert by_source.sums.run.experimental_get_tracing_count() == 1
  shown = io.StringIO()
  Progress(num_train_steps=8, stream=shown).eval(4, found)
  assert [line.split(":")[0] for line in shown.getvalue().splitlines()[1:]] == ["  books", "  wiki"]


def test_a_short_evaluation_sees_every_source():
  counts = {"large": 6000, "small": 30}
  assert share_steps(counts, batch_size=64, at_most=100) == {"large": 94, "small": 1}
  assert share_steps(counts, batch_size=64, at_most=10) == {"large": 9, "small": 1}
  assert share_steps({"": 640}, batch_size=64, at_most=3) == {"": 3}
  assert share_steps(dict.fromkeys("abc", 64), batch_size=64, at_most=1) == dict.fromkeys("abc", 1)
