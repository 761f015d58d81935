"""`evaluate.py`: a trained run on held-out sets of any task and length."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from support.commands.script_runs import Run, run_script
from support.tiny_pretraining import NUM_STEPS, tiny_settings
from support.tiny_records import SPEC, VOCAB_SIZE, random_examples, write_records

from albert_tf import compat
from albert_tf.checkpoints.bundle import latest_checkpoint, read_bundle, write_bundle
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.run import run_pretraining
from albert_tf.records import Manifest, RecordFile
from albert_tf.runs.metrics_log import read_metrics

pytestmark = pytest.mark.slow


def _describe(
  folder: pathlib.Path, task: str, *, vocab_size=VOCAB_SIZE, length=SPEC.max_seq_length
):
  """The held-out records of `folder` once more, with a manifest that names the task."""
  directory = folder / f"{task}{length}{vocab_size}"
  directory.mkdir()
  path = directory / "eval-00000-of-00001.tfrecord"
  path.write_bytes((folder / "eval-0.tfrecord").read_bytes())
  files = (RecordFile(path.name, "eval", 13, path.stat().st_size, ""),)
  manifest = Manifest(vocab_size, "", length, SPEC.max_predictions_per_seq, task, 1, files)
  manifest.save(str(directory))
  return f"{directory}/eval-*"


def _with_huge_weights(run: pathlib.Path) -> str:
  """A copy of the run's model whose outputs overflow."""
  copied = run.parent / "huge"
  (copied / "checkpoints").mkdir(parents=True)
  shutil.copy(run / "albert_config.json", copied)
  values = read_bundle(latest_checkpoint(f"{run}/checkpoints"))
  values["bert/embeddings/word_embeddings"][:] = 1e38
  write_bundle(f"{copied}/checkpoints/model.ckpt-1", values)
  return str(copied)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("probes")
  optimizer = OptimizerConfig(learning_rate=0.01, num_train_steps=NUM_STEPS, num_warmup_steps=2)
  run_pretraining(tiny_settings(folder, "run", optimizer=optimizer))
  return folder


@pytest.fixture(scope="module")
def runs(folder: pathlib.Path) -> dict[str, Run]:
  """The command with different flags, in one process."""
  run, last = folder / "run", latest_checkpoint(str(folder / "run/checkpoints"))
  write_records(folder / "one.tfrecord", random_examples(1, seed=3))
  examples = random_examples(3, seed=3)
  examples[2]["masked_lm_weights"][0] = np.nan
  write_records(folder / "nan.tfrecord", examples)
  batch = "--eval_batch_size=4"
  sets = [f"--eval_input_file=foreign={folder}/eval-0.tfrecord"]
  sets += [f"--eval_input_file={task}={_describe(folder, task)}" for task in ("sop", "nsp", "none")]
  one, base = f"--eval_input_file=a={folder}/one.tfrecord", [f"--init_checkpoint={run}", batch]
  words = {
    "last": [
      *(f"--init_checkpoint={last}", f"--output_dir={folder}/o", "--layer_similarity"),
      *(batch, *sets),
    ],
    "some": [
      *(*base, f"--eval_input_file=a={folder}/eval-0.tfrecord", "--max_eval_steps=2"),
      # In one process, TensorFlow's collectives must have the sizes of the run before.
      *("--layer_similarity", compat.HOST_XLA * "--use_xla" or "--nouse_xla"),
    ],
    "unnamed": [*base, f"--eval_input_file={folder}/one.tfrecord"],
    "twice": [*base, one, one],
    "vocabulary": [*base, f"--eval_input_file=a={_describe(folder, 'sop', vocab_size=99)}"],
    "long": [base[0], f"--eval_input_file=a={_describe(folder, 'sop', length=17)}"],
    "other lengths": [*base, f"--eval_input_file=a={_describe(folder, 'sop', length=12)}"],
    "weight": [*base, f"--eval_input_file=a={folder}/nan.tfrecord"],
    "model": [f"--init_checkpoint={_with_huge_weights(run)}", batch, *sets],
    "nothing": [*base, f"--eval_input_file=a={folder}/gone-*"],
  }
  done = run_script("evaluate", list(words.values()), emulated_gpus=2)
  return dict(zip(words, done, strict=True))


def test_it_says_what_the_runs_own_evaluation_said_by_the_names_of_each_sets_task(folder, runs):
  assert runs["last"].status == 0, runs["last"]
  record = json.loads((folder / "o/eval.json").read_text())
  *_, own = (
    line for line in read_metrics(f"{folder}/run/metrics.jsonl") if line["split"] == "eval"
  )
  assert record["step"] == NUM_STEPS
  assert record["checkpoint"].endswith(f"model.ckpt-{NUM_STEPS}")
  sets = record["sets"]
  assert list(sets) == ["foreign", "sop", "nsp", "none"]
  masked_lm = {name: own[name] for name in ("masked_lm_accuracy", "masked_lm_loss")}
  order = {name: own[f"sentence_order_{name}"] for name in ("accuracy", "loss")}
  tasks = {"foreign": "sentence_order", "sop": "sentence_order", "nsp": "next_sentence"}
  for name, task in tasks.items():
    expected = {**masked_lm, **{f"{task}_{kind}": value for kind, value in order.items()}}
    found = {key: value for key, value in sets[name].items() if key.endswith(("accuracy", "loss"))}
    assert found == pytest.approx(expected, rel=1e-5)  # Of two replicas.
  assert {key for key in sets["none"] if key.endswith(("accuracy", "loss"))} == set(masked_lm)
  assert {each["num_examples"] for each in sets.values()} == {13}
  assert "next_sentence_accuracy" in runs["last"].stdout


def test_layers_are_compared_and_some_batches_are_enough(folder, runs):
  sets = json.loads((folder / "o/eval.json").read_text())["sets"]
  similarity = sets["sop"]["layer_similarity"]
  assert {len(values) for values in similarity.values()} == {2}
  assert np.all(np.array(similarity["l2"]) > 0)
  assert all(0 < angle < 180 for angle in similarity["degrees"])
  assert runs["some"].status == 0, runs["some"]
  some = json.loads((folder / "run/eval.json").read_text())
  assert some["sets"]["a"]["num_examples"] == 8


def test_another_depth_is_evaluated(folder, runs):
  # In a process of its own: TensorFlow's collectives would have other sizes.
  words = [f"--init_checkpoint={folder}/run", f"--output_dir={folder}/deep"]
  words += [f"--eval_input_file=foreign={folder}/eval-0.tfrecord", "--layer_similarity"]
  [deep] = run_script("evaluate", [[*words, "--num_hidden_layers=3"]])
  assert deep.status == 0, deep
  record = json.loads((folder / "deep/eval.json").read_text())
  of_set = record["sets"]["foreign"]
  assert (record["num_hidden_layers"], len(of_set["layer_similarity"]["l2"])) == (3, 3)
  assert json.loads((folder / "o/eval.json").read_text())["num_hidden_layers"] == 2


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("unnamed", "--eval_input_file=NAME=GLOB"),
    ("twice", "a name of its own"),
    ("vocabulary", f"vocab_size: records 99, asked {VOCAB_SIZE}"),
    ("long", "max_seq_length=17 in the set a, max_position_embeddings=16"),
    ("other lengths", "10 values of input_ids, expected 12"),
    ("weight", "nan in masked_lm_weights of {folder}/nan.tfrecord, record 2"),
    ("model", "loss=nan of the held-out set foreign"),
    ("nothing", "--eval_input_file=a"),
  ],
)
def test_what_cannot_be_evaluated_is_refused(folder, runs, name, message):
  assert runs[name].status == 2, runs[name]
  assert message.format(folder=folder) in runs[name].stderr
