"""The commands of a study stood in for: each only leaves what the real one leaves."""

import hashlib
import json
import pathlib

from support.goldens import SPM_MODEL

from albert_tf.configs import AlbertConfig
from albert_tf.records import Manifest
from albert_tf.studies.catalogue import find_study
from albert_tf.studies.driver import check_directory, run_plan
from albert_tf.studies.plan import Plan
from albert_tf.studies.study import flag_values

VOCAB_SHA256 = hashlib.sha256(pathlib.Path(SPM_MODEL).read_bytes()).hexdigest()
CONFIG = AlbertConfig.from_name("tiny", vocab_size=8000)


def make_plan(tmp_path, study="sentence_loss", **changes):
  study = find_study(study)
  values = {
    "scale": "laptop",
    "arms": study.arms_at("laptop"),
    "seeds": (1, 2),
    "output_dir": str(tmp_path / "lab"),
    "spm_model_file": SPM_MODEL,
    "train_flags": ("--size=tiny", "--num_train_steps=100", "--train_batch_size=8"),
    "data_flags": ("--max_seq_length=32", "--max_predictions_per_seq=5"),
  }
  return Plan(study=study, **{**values, **changes})


class Commands:
  """Leaves what the commands leave; ends like a killed process at the command whose number is `die_at`."""

  def __init__(self, *, die_at=None, vocab_sha256=VOCAB_SHA256):
    self.finished, self.rounds, self.count = [], [], 0
    self.die_at, self.vocab_sha256 = die_at, vocab_sha256

  def __call__(self, commands):
    self.count += 1
    if self.count == self.die_at:
      raise KeyboardInterrupt
    for title, command in commands.items():
      script, values = pathlib.Path(command[0]).stem, flag_values(command)
      getattr(self, script)(values)
      self.finished.append((title, command))
    self.rounds.append(list(commands))

  def extract_installed_docs(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    for number in range(4):
      (folder / f"docs-0000{number}-of-00004.txt").write_text("A sentence.\n")

  def create_pretraining_data(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    Manifest(
      vocab_size=8000, vocab_sha256=self.vocab_sha256, max_seq_length=32, max_predictions_per_seq=5,
      sentence_pair=values["sentence_pair"], random_seed=1, files=(),
    ).save(str(folder))  # fmt: skip

  def run_pretrain(self, values):
    folder = pathlib.Path(values["output_dir"])
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "albert_config.json").write_text(CONFIG.to_json_string())
    loss = 6.0 + 0.1 * int(values.get("seed", 1)) - ("nsp" in str(folder))
    rows = []
    for step in (50, 100):
      common = {"step": step, "masked_lm_loss": loss - step / 100, "masked_lm_accuracy": 0.2}
      rate = {50: 10.0, 100: 40.0}[step]
      rows.append({**common, "split": "train", "examples_per_second": rate, "seconds_step": 36.0 * step,
                   "seconds_input": 0.0, "seconds_evaluation": 1800.0, "seconds_down": 99.0})  # fmt: skip
      rows.append({**common, "split": "eval", "sentence_order_accuracy": 0.6})
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

  def run_tasks(self, values):
    folder = pathlib.Path(values["output_dir"])
    folder.mkdir(parents=True)
    record = {"scores": {"mnli": 70.0}, "average": 70.0, "left_out": {"race": "no folder"}}
    (folder / "tasks.json").write_text(json.dumps(record))

  def compile_for_tpu(self, values):
    path = pathlib.Path(values["output_json"])
    path.parent.mkdir(exist_ok=True)
    cycles = 100 if values["size"] == "bert_large" else 50
    path.write_text(json.dumps({"time": {"cycles": cycles, "source": "formula"}}))


def run(plan, commands, said=None, at_once=1):
  check_directory(plan)
  notice = (said if said is not None else []).append
  run_plan(plan, run=commands, notice=notice, after=lambda stage: None, at_once=at_once)
