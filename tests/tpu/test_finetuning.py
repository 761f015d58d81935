"""Every family of fine-tuning on the real TPUStrategy over emulated cores: on one host and on a slice of two, it
ends with the weights and the predictions of one device."""

import json

import numpy as np
import pytest
from support import tiny_run
from support.task_files import write_columns, write_mrpc, write_race, write_squad
from support.tpu import runs

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.compat import KERAS_3

CORES = 2
TRAINING = {
  "do_train": True,
  "do_predict": True,
  "train_batch_size": 8,
  "eval_batch_size": 6,
  "num_train_steps": 6,
  "save_checkpoints_steps": 3,
  "learning_rate": 0.002,
  "albert_dropout": 0,
  "classifier_dropout": 0,
  "bucket_multiple": 0,
  "mixed_precision": "float32",
  "noprogress": True,
  "noexport": True,
}
# Keras 2 sums the loss that it shows over the cores in every micro-batch; the emulator has no sums within loops.
PARTS = 2 if KERAS_3 else 1
LEAN = {"gradient_accumulation_steps": PARTS, "remat": True, "train_depths": "1,2"}
SPLITS, FILES = ("train", "eval", "test"), ("train", "dev", "test")
SQUAD = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 8, "max_answer_length": 6}


@pytest.fixture(scope="module")
def families(tmp_path_factory):
  """Script → name of a task → its flags, and the folder of everything."""
  data = tmp_path_factory.mktemp("tpu_finetuning")
  tiny_run.write_pretrained(data / "pretrained")
  write_mrpc(data / "MRPC", 22)
  for version, articles in (("2.0", 4), ("1.1", 3)):
    write_squad(data / f"train{version}.json", version=version, articles=articles)
    write_squad(data / f"dev{version}.json", version=version, seed=1)
  write_race(data)
  (data / "ner").mkdir()
  for split, count in (("train", 20), ("dev", 6), ("test", 3)):
    write_columns(data / f"ner/{split}.txt", count)
  tagged = {
    f"{split}_file": data / f"ner/{name}.txt" for split, name in zip(SPLITS, FILES, strict=True)
  }
  squad = {
    f"squad{version}": {
      **SQUAD,
      "version": version,
      "train_file": data / f"train{version}.json",
      "predict_file": data / f"dev{version}.json",
      **(LEAN if version == "2.0" else {}),
    }
    for version in ("1.1", "2.0")
  }
  return data, {
    "run_glue": {"mrpc": {"task_name": "MRPC", "data_dir": data, "max_seq_length": 32, **LEAN}},
    "run_squad": squad,
    "run_race": {"race": {"data_dir": data / "RACE", "max_seq_length": 32, "max_qa_length": 16}},
    "run_tagging": {"ner": {**tagged, "task_name": "ner", "max_seq_length": 16}},
  }


def same_runs(one, other):
  """Weights and metrics to 1e-5; the chosen answers are the same."""
  first, second = (
    read_bundle(latest_bundle(str(each / "checkpoints/best"))) for each in (one, other)
  )
  assert first.keys() == second.keys()
  for name, value in first.items():
    np.testing.assert_allclose(value, second[name], atol=1e-5, err_msg=name)
  metrics, others = (json.loads((each / "results.json").read_text()) for each in (one, other))
  for name, value in metrics.items():
    if isinstance(value, float) and not name.endswith("seconds"):
      assert value == pytest.approx(others[name], abs=1e-4), name
  for path in [*one.glob("predictions.json"), *one.glob("test_results.tsv"), *one.glob("*.tsv")]:
    if "probabilit" not in path.read_text()[:200]:
      assert path.read_text() == (other / path.name).read_text(), path.name


def check(families, script, *, tpus):
  """Trains each task of a script on one device and on emulated TPUs, all in one process."""
  data, tasks = families
  compared, listed = [], []
  for number, tpu in enumerate(["", *tpus]):
    for name, flags in tasks[script].items():
      place = data / f"{name}_on_{len(tpus)}_{number}"
      compared.append((name, place))
      where = {"tpu": tpu} if tpu else {"distribution": "one_device"}
      own = {"init_checkpoint": data / "pretrained", "output_dir": place, **where}
      listed.append((CORES, {**flags, **TRAINING, **own}))
  found = runs.succeeded(runs.start(script, *listed))
  count = len(tasks[script])
  for run, (name, place), (_, alone) in zip(
    found[count:], compared[count:], compared[:count] * 2, strict=False
  ):
    same_runs(alone, place)
    check_reductions(run, name, place)


def check_reductions(run, name, directory):
  """Each gradient is summed over the replicas once; other sums are only those of `fit`'s metrics."""
  best = read_bundle(latest_bundle(str(directory / "checkpoints/best")))
  reads_pooler = name in ("mrpc", "race")
  gradients = sum(
    "pooler" not in variable or reads_pooler for variable in best if variable != "global_step"
  )
  sums = max(sum(program["collectives"].values()) for program in run.programs)
  assert gradients < sums < 1.5 * gradients


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run_glue", "run_squad", "run_race", "run_tagging"])
def test_every_family_on_one_host_and_on_a_slice_of_two(families, tmp_path, script):
  with runs.slice_of(tmp_path, hosts=2, cores_per_host=1) as hosts:
    check(families, script, tpus=("local", hosts.tpu))
