"""Model cards: what they say of runs, conversions and exports, and that the hub's own reader takes them."""

import dataclasses
import json

import pytest
import yaml

from albert_tf.configs import AlbertConfig
from albert_tf.configs.model_card import CARD_FILE, FORMATS, write_model_card
from albert_tf.configs.task import TASK_KINDS, TaskSpec

CONFIG = AlbertConfig.from_name("base_v2")
TASK = TaskSpec(kind="classification", name="mrpc", label_names=("no: 0", "yes"), pair=True)


def write_run(folder, *, seeds=False):
  """The files of a finished fine-tuning, with a path that must stay private."""
  folder.mkdir(exist_ok=True)
  run = folder
  results = {"task": "mrpc", "accuracy": 0.7, "f1": 0.8, "train_seconds": 3.5, "seed": 1}
  results |= {"train_examples": 3668}
  if seeds:
    run = folder / "seed_2"
    run.mkdir()
    spread = {"min": 0.6, "max": 0.75, "standard_deviation": 0.05}
    results |= {"best_run": "seed_2", "median": {"accuracy": 0.7}, "spread": {"accuracy": spread}}
  (folder / "results.json").write_text(json.dumps(results))
  record = {
    "identity": {"content of train examples": "abc"},
    "sources": {"init_checkpoint": "/secret/place/albert_base"},
    "settings": {"learning_rate": 2e-5, "dropout": None, "distribution": {"use_xla": True, "tpu": "mine"}},
    "versions": {"albert_tf": "0.1.0"},
  }  # fmt: skip
  (run / "run.json").write_text(json.dumps(record))


def card_of(folder, **options):
  """The card's front matter and text."""
  write_model_card(str(folder), **{"config": CONFIG, "task": TASK, "run": str(folder), **options})
  text = (folder / CARD_FILE).read_text(encoding="utf-8")
  _, header, body = text.split("---\n", 2)
  return yaml.safe_load(header), body


def test_a_fine_tuned_run(tmp_path):
  write_run(tmp_path)
  header, body = card_of(tmp_path)
  assert header["license"] == "unknown"
  assert header["pipeline_tag"] == "text-classification"
  (result,) = header["model-index"][0]["results"]
  assert result["dataset"]["name"] == "mrpc"
  assert {metric["type"]: metric["value"] for metric in result["metrics"]} == {
    "accuracy": 0.7,
    "f1": 0.8,
  }
  assert "11,683,584 parameters in 12 layers" in body
  assert "Labels: no: 0, yes." in body
  assert "| learning_rate | 2e-05 |" in body
  assert "| use_xla | True |" in body
  assert "| f1 | 0.8000 | – |" in body
  assert "Started from: albert_base" in body
  assert "Training examples: 3,668" in body
  assert "abc" in body
  for private in ("secret", "mine", "dropout"):
    assert private not in body


def test_several_seeds_have_median_and_range(tmp_path):
  write_run(tmp_path, seeds=True)
  _, body = card_of(tmp_path)
  assert "| accuracy | 0.7000 | 0.6000 to 0.7500 |" in body
  assert "learning_rate" in body  # Of the best seed's run.json.


def test_a_pretraining_has_its_last_evaluation(tmp_path):
  names = [f"/secret/train-{number}" for number in range(3)]
  record = {"settings": {"input_files": names, "step": {"global_batch_size": 8}}}
  record["versions"] = {"albert_tf": "0.1.0"}
  (tmp_path / "run.json").write_text(json.dumps(record))
  reports = [("eval", 1, 0.1), ("train", 2, 0.9), ("eval", 2, 0.3), ("train", 3, 0.8)]
  lines = [
    json.dumps({"step": step, "split": split, "masked_lm_accuracy": value})
    for split, step, value in reports
  ]
  (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
  header, body = card_of(tmp_path, task=None, hub_task="fill-mask")
  assert header["pipeline_tag"] == "fill-mask"
  assert "| masked_lm_accuracy | 0.3000 |" in body
  assert "Training records: train-0, … (3 files), train-2" in body
  assert "| global_batch_size | 8 |" in body
  assert "secret" not in body


def test_an_edited_card_stays_and_its_licence_goes_with_the_weights(tmp_path):
  run, out = tmp_path / "run", tmp_path / "out"
  write_run(run)
  out.mkdir()
  card_of(run)
  path = run / CARD_FILE
  path.write_text(path.read_text().replace("license: unknown", "license: apache-2.0"))
  # The line that marks it is still there, so the card is made again, with the licence.
  header, _ = card_of(run)
  assert header["license"] == "apache-2.0"
  header, _ = card_of(out, run=str(run), format="huggingface")
  assert (header["license"], header["library_name"]) == ("apache-2.0", "transformers")
  path.write_text("---\nlicense: mit\n---\nMy own words.\n")
  card_of(run)
  assert path.read_text().endswith("My own words.\n")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", TASK_KINDS)
def test_the_hub_reads_every_card(tmp_path, kind, format):
  """Hugging Face's own class finds figures and licence."""
  hub = pytest.importorskip("huggingface_hub")
  write_run(tmp_path)
  labels = ()
  if kind in ("classification", "multi_label", "token_classification"):
    labels = ("a", "b")
  version = ""
  if kind == "question_answering":
    version = "2.0"
  task = dataclasses.replace(TASK, kind=kind, label_names=labels, squad_version=version)
  card_of(tmp_path, task=task, format=format)
  card = hub.ModelCard.load(tmp_path / CARD_FILE)
  assert card.data.license == "unknown"
  assert card.data.pipeline_tag == TASK_KINDS[kind].hub
  assert {result.metric_type: result.metric_value for result in card.data.eval_results} == {
    "accuracy": 0.7,
    "f1": 0.8,
  }


@pytest.mark.parametrize("run", ["", "."])
def test_weights_of_unknown_origin_have_no_figures(run, tmp_path, monkeypatch):
  """Files of other programs lie about, and a licence of something else."""
  elsewhere = tmp_path / "elsewhere"
  elsewhere.mkdir()
  monkeypatch.chdir(elsewhere)
  (elsewhere / "run.json").write_text('{"settings": 3, "identity": []}')
  if not run:
    (elsewhere / CARD_FILE).write_text("---\nlicense: mit\n---\n")
  header, body = card_of(tmp_path, run=run)
  assert header["license"] == "unknown"
  assert "model-index" not in header
  for heading in ("## Figures", "## Settings", "## Data"):
    assert heading not in body
