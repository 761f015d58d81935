"""Reports: one JSON line each, no step twice after a resume, readable progress, curves."""

import contextlib
import dataclasses
import io
import json

from matplotlib.image import imread
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining import reporter as reporter_module
from albert_tf.pretraining.curves import draw_curves
from albert_tf.pretraining.reporter import Machine, Reporter
from albert_tf.pretraining.settings import PretrainingSettings, StepConfig

METRICS = {"loss": 7.5, "masked_lm_loss": 6.8, "masked_lm_accuracy": 0.125, "sentence_order_loss": 0.7,
           "sentence_order_accuracy": 0.5, "learning_rate": 0.001, "gradient_norm": 2.0, "weight_norm": 30.0,
           "update_norm": 0.1}  # fmt: skip

HELD_OUT = {"loss": 7.0, "masked_lm_loss": 6.5, "masked_lm_accuracy": 0.25}
SETTINGS = PretrainingSettings(
  input_files=(),
  output_dir="",
  model=tiny_config(),
  optimizer=OptimizerConfig(num_train_steps=100, num_warmup_steps=1),
  step=StepConfig(),
  max_seq_length=16,
  max_predictions_per_seq=3,
)


def run(directory, steps, *, metrics=METRICS, **options):
  settings = dataclasses.replace(SETTINGS, output_dir=str(directory))
  machine = Machine(model_flops_per_example=5e9)
  with contextlib.redirect_stderr(io.StringIO()) as stream:
    reporter = Reporter(settings, machine=machine, **options)
    for step in steps:
      reporter.train(step, metrics, updates=10, seconds=2.0, examples=320, tokens=40_960)
      reporter.eval(step, HELD_OUT)
    reporter.close()
  return stream.getvalue()


def lines(directory):
  return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def tensorboard_steps(directory, split):
  steps = []
  for path in sorted((directory / "tensorboard" / split).iterdir()):
    for event in tf.compat.v1.train.summary_iterator(str(path)):
      steps += [event.step for value in event.summary.value if value.tag == "loss"]
  return steps


def test_a_report_has_the_documented_keys_and_rates(tmp_path, monkeypatch):
  monkeypatch.setattr(reporter_module, "draw_curves", draw_curves)  # Elsewhere nothing is drawn.
  run(tmp_path, [10], metrics={**METRICS, "weight_norm": float("nan")})  # JSON has no such number.
  train, held_out = lines(tmp_path)
  rates = {
    "examples_per_second": 160.0,
    "tokens_per_second": 20_480.0,
    "model_tflops_per_second": 0.8,
  }
  assert train == {"step": 10, "split": "train", **METRICS, "weight_norm": None, **rates}
  assert held_out == {"step": 10, "split": "eval", **HELD_OUT}
  assert tensorboard_steps(tmp_path, "train") == [10]
  assert imread(tmp_path / "curves.png").shape[1] > 1000


def test_progress_is_a_line_a_report(tmp_path):
  text = run(tmp_path, [10, 20]).splitlines()
  assert text[2].startswith(
    "step 20/100 (20%) · loss 7.5 · masked LM 6.8 12.5% · order 0.7 50.0% · rate 0.001"
  )
  assert text[2].endswith("160 ex/s · 20,480 tok/s · 0.8 TFLOP/s · ETA 0:00:16")
  assert text[3] == "held-out at step 20 · loss 7 · masked LM 6.5 25.0%"


def test_resume_forgets_reports_beyond_the_checkpoint(tmp_path):
  """Killed after step 40 with a checkpoint of step 20: the log has each step once, TensorBoard some twice."""
  run(tmp_path, [10, 20, 30, 40])
  run(tmp_path, [30, 40, 50], start_step=20)
  assert [(r["step"], r["split"]) for r in lines(tmp_path)] == [
    (step, split) for step in (10, 20, 30, 40, 50) for split in ("train", "eval")
  ]
  assert tensorboard_steps(tmp_path, "train") == [10, 20, 30, 40, 30, 40, 50]


def test_only_the_chief_writes(tmp_path):
  assert run(tmp_path / "run", [10], is_chief=False) == ""
  assert not (tmp_path / "run").exists()
