"""Every family of fine-tuning on the real TPUStrategy, over emulated cores of one host, equals one device."""

import json

import numpy as np
import pytest
from support import tiny_run
from support.commands.child_processes import flags_of
from support.task_files import write_columns, write_mrpc, write_race, write_squad
from support.tpu import runs

from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.compat import KERAS_3

CORES = 2
TRAINING = flags_of("""
  --do_train --do_predict --train_batch_size=8 --eval_batch_size=6 --num_train_steps=6 --save_checkpoints_steps=3
  --learning_rate=0.002 --albert_dropout=0 --classifier_dropout=0 --mixed_precision=float32
  --noexport
""")
# Keras 2 sums the loss that it shows over the cores in every micro-batch; the emulator has no sums within loops.
PARTS = 2 if KERAS_3 else 1
LEAN = flags_of(f"--gradient_accumulation_steps={PARTS} --remat --train_depths=1,2")
SQUAD = "--max_seq_length=32 --max_query_length=8 --doc_stride=8 --max_answer_length=6"


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
  for name, count in (("train", 20), ("dev", 6), ("test", 3)):
    write_columns(data / f"ner/{name}.txt", count)

  def squad(version):
    splits = f"--train_file={data}/train{version}.json --predict_file={data}/dev{version}.json"
    return flags_of(f"--version={version} {splits} {SQUAD}")

  mrpc = flags_of(f"--task_name=MRPC --data_dir={data} --max_seq_length=32")
  race = flags_of(f"--data_dir={data}/RACE --max_seq_length=32 --max_qa_length=16")
  tagging = flags_of(f"""
    --train_file={data}/ner/train.txt --eval_file={data}/ner/dev.txt --test_file={data}/ner/test.txt
    --max_seq_length=16
  """)
  return data, {
    "run_glue": {"mrpc": mrpc | LEAN},
    "run_squad": {"squad1.1": squad("1.1"), "squad2.0": squad("2.0") | LEAN},
    "run_race": {"race": race},
    "run_tagging": {"ner": tagging},
  }


def best_values(run):
  return read_bundle(latest_bundle(str(run / "checkpoints/best")))


def same_runs(one, other):
  """Weights and metrics to 1e-5; the chosen answers are the same."""
  first, second = best_values(one), best_values(other)
  assert first.keys() == second.keys()
  for name, value in first.items():
    np.testing.assert_allclose(value, second[name], atol=1e-5, err_msg=name)
  metrics, others = (json.loads((each / "results.json").read_text()) for each in (one, other))
  for name, value in metrics.items():
    if isinstance(value, float) and not name.endswith("seconds"):
      assert value == pytest.approx(others[name], abs=1e-4), name
  for path in [*one.glob("predictions.json"), *one.glob("*.tsv")]:
    if "probabilit" not in path.read_text()[:200]:
      assert path.read_text() == (other / path.name).read_text(), path.name


def check_reductions(run, name, directory):
  """Each gradient is summed over the replicas once; other sums are only those of `fit`'s metrics."""
  trained = best_values(directory).keys() - {"global_step"}
  if name not in ("mrpc", "race"):
    trained = [variable for variable in trained if "pooler" not in variable]
  sums = max(sum(program["collectives"].values()) for program in run.programs)
  assert len(trained) < sums < 1.5 * len(trained)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run_glue", "run_squad", "run_race", "run_tagging"])
def test_every_family_on_one_host(families, script):
  """Each task of a script is trained on one device and on emulated TPUs, all in one process."""
  data, tasks = families
  runs_of, listed = [], []
  ways = {"alone": {}, "host": {"tpu": "local"}}
  for way, where in ways.items():
    for name, flags in tasks[script].items():
      own = {"init_checkpoint": data / "pretrained", "output_dir": data / f"{name}_{way}"}
      runs_of.append((name, way))
      listed.append((CORES, {**flags, **TRAINING, **own, **where}))
  found = runs.succeeded(runs.start(script, *listed))
  for run, (name, way) in zip(found, runs_of, strict=True):
    if way != "alone":
      same_runs(data / f"{name}_alone", data / f"{name}_{way}")
      check_reductions(run, name, data / f"{name}_{way}")
