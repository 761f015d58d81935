"""The commands of a study stood in for: each only leaves what the real one leaves."""

import json
import pathlib

from support.goldens import SPM_MODEL

from albert_tf.configs import AlbertConfig
from albert_tf.records.manifest import Baseline, Manifest, RecordFile
from albert_tf.studies.plan import Plan, flag_values

CONFIG = AlbertConfig.from_name("tiny", vocab_size=8000)


def make_plan(tmp_path, study="sentence_loss", **changes):
  values = {
    "seeds": (1, 2),
    "output_dir": str(tmp_path / "lab"),
    "spm_model_file": SPM_MODEL,
    "train_flags": "--size=tiny --num_train_steps=100 --train_batch_size=8",
    "data_flags": "--max_seq_length=32 --max_predictions_per_seq=5",
  }
  return Plan(study=study, **{**values, **changes})


class Commands:
  """Runs a plan, and leaves what its commands leave."""

  def run(self, plan):
    self.finished = []
    for command in plan.commands():
      values = flag_values(command.words)
      getattr(self, pathlib.Path(command.words[0]).stem)(values)
      self.finished.append((command.name, values))
    return self

  def extract_installed_docs(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    for number in range(4):
      (folder / f"docs-0000{number}-of-00004.txt").write_text("A sentence.\n")

  def create_pretraining_data(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    split = [RecordFile("eval-00000", "eval", 400, 0, "")]
    base = Baseline(5, "the", 0.06, 0.05)
    manifest = Manifest(8000, "", 32, 5, values["sentence_pair"], 1, tuple(split), base)
    manifest.save(str(folder))

  def run_pretrain(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    (folder / "albert_config.json").write_text(CONFIG.to_json_string())
    loss = 6.0 + 0.1 * int(values.get("seed", 1)) - ("nsp" in str(folder))
    rows, steps = [], int(values["num_train_steps"])
    order = 0.54 if "sop/seed-2" in str(folder) else 0.6  # Of 400 examples chance is 45 to 55 %.
    settings = {"eval_input_files": [values["eval_input_file"]], "eval_batch_size": 64, "max_eval_steps": 100}
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    for step in (steps // 2, steps):
      common = {"step": step, "masked_lm_loss": loss - step / steps, "masked_lm_accuracy": 0.2}
      rate = 10.0 if step < steps else 40.0
      rows.append({**common, "split": "train", "examples_per_second": rate, "seconds_step": 3600.0 * step / steps,
                   "seconds_input": 0.0, "seconds_evaluation": 1800.0, "seconds_lost": 99.0})  # fmt: skip
      rows.append({**common, "split": "eval", "sentence_order_accuracy": order})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

  def evaluate(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    arm = folder.parent.name
    sop, nsp = {"start": (0.5, 0.5), "none": (0.5, 0.5), "nsp": (0.52, 0.9), "sop": (0.86, 0.79)}[arm]
    sets = {
      "ordered": {"masked_lm_accuracy": 0.25, "masked_lm_loss": 5.0, "num_examples": 9, "sentence_pair": "ordered"},
      "nsp": {"next_sentence_accuracy": nsp},
      "sop": {"sentence_order_accuracy": sop},
    }  # fmt: skip
    (folder / "eval.json").write_text(json.dumps({"step": 100, "checkpoint": "x", "sets": sets}))

  def _task(self, values, **results):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results))

  def run_glue(self, values):
    self._task(values, accuracy=0.7)

  def run_squad(self, values):
    self._task(values, median={"test_f1": 90.0, "test_exact": 80.0})

  def run_race(self, values):
    self._task(values, accuracy=0.6)
