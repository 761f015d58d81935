"""The command that writes small files, and what it refuses."""

import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from support import tiny_run
from support.serving.small_models import TASKS, ids_model

from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.serving.small import export as small_model
from albert_tf.serving.small.export import export_small_model
from albert_tf.serving.small.ids_model import Parity, Sizes
from albert_tf.serving.small.onnx.convert import OnnxRunner
from albert_tf.tokenization import AlbertTokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
  return tiny_run.train_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def pretrained(tokenizer: AlbertTokenizer, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  run = tmp_path_factory.mktemp("pretrained") / "run"
  tiny_run.write_run(run, tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  return run


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A directory as fine-tuning leaves it: task.json, configuration, best checkpoint."""
  run = tmp_path_factory.mktemp("fine_tuned")
  model, task = ids_model("classifier"), TASKS["classifier"]
  assert isinstance(task, TaskSpec)
  task.save(str(run))
  (run / "albert_config.json").write_text(model.config.to_json_string())
  best = run / "checkpoints/best"
  best.mkdir(parents=True)
  arrays = {name: variable.numpy() for name, variable in named_variables(model.model).items()}
  write_bundle(str(best / "model.ckpt-7"), arrays)
  return run


def test_the_command_writes_a_file_and_says_how_good_it_is(
  repository_dir: pathlib.Path, pretrained: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  output = tmp_path / "new/fill_mask.tflite"
  command = [
    sys.executable,
    "tpu_scripts/export_small_model.py",
    "--model=fill_mask",
    f"--init_checkpoint={pretrained}",
    "--format=tflite",
    "--max_seq_length=16",
    f"--output={output}",
  ]
  done = subprocess.run(command, cwd=repository_dir, capture_output=True, text=True, timeout=120, check=False)
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[0] == f"Exported fill_mask to {output} (tflite)"
  assert re.fullmatch(r"  size: [\d,]+ bytes = [\d.]+ x the 2,060 parameters \(8,240 bytes\)", lines[1])
  assert re.fullmatch(
    r"  mlm_logits: largest difference \S+, cosine >= 1\.000000, same best 100\.0%", lines[2]
  )
  assert [path.name for path in output.parent.iterdir()] == ["fill_mask.tflite"]


def test_a_file_that_exists_stays(fine_tuned: pathlib.Path, tmp_path: pathlib.Path) -> None:
  path = tmp_path / "there"
  path.write_text("mine")
  with pytest.raises(UserError, match="The output file must not exist"):
    export_small_model(model="classifier", init_checkpoint=str(fine_tuned), format="onnx", output=str(path))
  assert path.read_text() == "mine"


def test_a_fine_tuned_directory_becomes_a_classifier(
  fine_tuned: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  path = tmp_path / "classifier.onnx"
  report = export_small_model(
    model="classifier", init_checkpoint=str(fine_tuned), format="onnx", output=str(path)
  )
  assert report.num_bytes == path.stat().st_size
  assert report.ratio == pytest.approx(report.num_bytes / (4 * report.num_parameters))
  assert report.parity["probabilities"].max_difference < 1e-5
  inputs = ids_model("classifier").sample(rows=3, length=9)
  assert OnnxRunner(path.read_bytes())(inputs)["probabilities"].shape == (3, 4)


@pytest.mark.parametrize(
  ("arguments", "sizes", "message"),
  [
    ({"format": "caffe"}, Sizes(), "format must be one of tflite, tflite_float16, .*Received: 'caffe'"),
    ({"model": "poetry"}, Sizes(), "model must be one of encoder, .*Received: 'poetry'"),
    (
      {"model": "question_answering"},
      Sizes(),
      "question_answering needs a model fine-tuned for.*fine-tuned for classification",
    ),
    ({}, Sizes(max_seq_length=21), "max_seq_length must be between 8 and .*=20. Received: 21"),
    ({"format": "tflite"}, Sizes(max_seq_length=0), "A TFLite file has a fixed max_seq_length"),
    ({"init_checkpoint": "nowhere"}, Sizes(), "A checkpoint must be a directory"),
    ({"use_ema": True}, Sizes(), "Averaged weights are only in checkpoints of a run with --ema_decay"),
  ],
)
def test_mistakes_are_refused_and_nothing_is_written(
  fine_tuned: pathlib.Path, tmp_path: pathlib.Path, arguments: dict[str, Any], sizes: Sizes, message: str
) -> None:
  default: dict[str, Any] = {"model": "classifier", "init_checkpoint": str(fine_tuned), "format": "onnx"}
  with pytest.raises(UserError, match=message):
    export_small_model(**{**default, **arguments}, output=str(tmp_path / "new/x"), sizes=sizes)
  assert list(tmp_path.iterdir()) == []


def test_a_pretraining_run_is_no_classifier(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
  with pytest.raises(UserError, match=r"A fine-tuned run directory holds task\.json"):
    export_small_model(
      model="classifier", init_checkpoint=str(pretrained), format="onnx", output=str(tmp_path / "x")
    )


@pytest.mark.parametrize("parity", [Parity(0.5, 0.1, 0.0), Parity(float("nan"), float("nan"), 0.0)])
def test_a_file_that_answers_something_else_is_not_written(
  fine_tuned: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, parity: Parity
) -> None:
  monkeypatch.setattr(small_model, "compare", lambda expected, actual: dict.fromkeys(expected, parity))
  with pytest.raises(UserError, match=r"must give the model's outputs.*Nothing was written"):
    export_small_model(
      model="classifier", init_checkpoint=str(fine_tuned), format="onnx", output=str(tmp_path / "x")
    )
  assert list(tmp_path.iterdir()) == []
