"""The model card: README.md of a run, a converted checkpoint or an export, as Hugging Face's hub reads it.

Settings and data come from run.json, figures from results.json, or from metrics.jsonl of a
pretraining run. No names of folders are taken over: they may say more than their owner wants to
publish. What no program can know, such as the licence, is left to fill in.
"""

from collections.abc import Iterator, Mapping
import json
import math
import os
import re
from typing import Any, NamedTuple

from albert_tf import files, json_files
from albert_tf.configs.albert_config import AlbertConfig
from albert_tf.configs.task import RESULTS_FILE, TASK_KINDS, TaskSpec, best_run
from albert_tf.progress import markdown_table

CARD_FILE = "README.md"

_MARK = "<!-- Made by albert_tf, which may write it again. Without this line it leaves the file alone. -->"
_LICENSE = re.compile(r"\A---\n(?:(?!---).*\n)*?license: *(.+)\n")
# Settings that say where a run was and what it printed, not how its model was made.
_NOT_OF_THE_MODEL = {"input_files", "eval_input_files", "output_dir", "tokenizer_path", "model"}
_NOT_OF_THE_MODEL |= {"init_checkpoint", "do_train", "do_eval", "do_predict", "verbose"}
_NOT_OF_THE_MODEL |= {"tpu", "tpu_zone", "gcp_project", "profile_steps"}
_UNKNOWN = """\
The licence is in the first lines of this file. Whoever publishes the model writes here:

- who trained it, on whose text, and what it is for;
- the languages of the text, and what was done about personal data in it;
- what it must not be used for, and where it is known to be wrong.

A language model can repeat its training text, and what is false or unfair in it."""


class Format(NamedTuple):
  """What a folder holds: the library that loads it, and how."""

  library: str
  use: str


_HUGGING_FACE_USE = """\
```python
from transformers import pipeline

answer = pipeline("{task}", model="FOLDER")
```"""
FORMATS = {
  "albert_tf": Format(
    "keras",
    "`from_pretrained` of albert_tf's Keras models loads this folder, and `--init_checkpoint` of "
    "its commands.",
  ),
  "tf1": Format(
    "tensorflow", "google-research/albert, which takes TensorFlow 1.15, and albert_tf load it."
  ),
  "huggingface": Format("transformers", _HUGGING_FACE_USE),
  "saved_model": Format(
    "tensorflow",
    "TensorFlow Serving loads this folder. Its signatures take strings: the tokenizer is in the "
    "graph.",
  ),
}


class Figure(NamedTuple):
  """A metric; of several seeds the median, the lowest and the highest."""

  name: str
  value: float
  lowest: float
  highest: float


def write_model_card(
  directory: str,
  *,
  config: AlbertConfig,
  task: TaskSpec | None = None,
  run: str = "",
  format: str = "albert_tf",
  hub_task: str = "feature-extraction",
) -> None:
  """Writes the card of a folder, unless its owner has edited the one that is there.

  Args:
    directory: the folder of the model.
    config: the architecture.
    task: what it was fine-tuned for; None: it was pretrained.
    run: the directory of the run, or of several seeds, that made these weights; "": unknown.
    format: a key of `FORMATS`.
    hub_task: the hub's name of what a model without `task` does.
  """
  path = os.path.join(directory, CARD_FILE)
  before = _read(path)
  if before and _MARK not in before:
    return
  # A licence that somebody has written goes with the weights.
  found = _LICENSE.match(before)
  if run and not found:
    found = _LICENSE.match(_read(os.path.join(run, CARD_FILE)))
  license_name = "unknown"
  if found:
    license_name = found[1]

  title = "ALBERT"
  if task is not None:
    hub_task = TASK_KINDS[task.kind].hub
    title = f"ALBERT for {task.name}"
  record: Mapping[str, Any] = {}
  results: Mapping[str, Any] = {}
  figures: list[Figure] = []
  if run:
    record = json_files.find(os.path.join(best_run(run), "run.json"))
  # Folders of other programs may have files of these names.
  if "albert_tf" in record.get("versions", ()):
    results = json_files.find(os.path.join(best_run(run), RESULTS_FILE))
    figures = _figures(run)
  else:
    record = {}

  # The hub reads the front matter, between two lines of dashes; people read what follows.
  header = ["---", f"license: {license_name}", f"library_name: {FORMATS[format].library}"]
  header += [f"pipeline_tag: {hub_task}", "tags: [albert]"]
  header += _model_index(title, hub_task, task, figures)
  sections = {
    "Use": FORMATS[format].use.format(task=hub_task),
    "Model": _model(config, task),
    "Data": _data(record, results),
    "Settings": _settings(record),
    "Figures": _figures_table(figures),
    "Licence, origin and limits": _UNKNOWN,
  }
  lines = [*header, "---", _MARK, "", f"# {title}", ""]
  for heading, text in sections.items():
    if text:
      lines += [f"## {heading}", "", text, ""]
  files.write_text(path, "\n".join(lines))


def _read(path: str) -> str:
  if not files.exists(path):
    return ""
  return files.read_bytes(path).decode("utf-8", errors="replace")


def _figures(run: str) -> list[Figure]:
  """The metrics of a run; of pretraining those of its last evaluation."""
  results = json_files.find(os.path.join(run, RESULTS_FILE))
  if not results:
    path = os.path.join(run, "metrics.jsonl")
    for line in _read(path).splitlines():
      # The last evaluation counts.
      report = json_files.parse(line, path)
      if report.get("split") == "eval":
        results = report
  figures = []
  for name, value in results.get("median", results).items():
    if isinstance(value, float) and math.isfinite(value) and not name.endswith("_seconds"):
      spread = results.get("spread", {}).get(name, {"min": value, "max": value})
      figures.append(Figure(name, value, spread["min"], spread["max"]))
  return figures


def _model_index(
  title: str, hub_task: str, task: TaskSpec | None, figures: list[Figure]
) -> Iterator[str]:
  """The figures as the hub reads them. Strings are written as in JSON, which is YAML too."""
  if not figures:
    return
  data = "held-out text"
  if task is not None:
    data = task.name
  yield "model-index:"
  yield f"- name: {json.dumps(title)}"
  yield "  results:"
  yield f"  - task: {{type: {hub_task}}}"
  yield f"    dataset: {{name: {json.dumps(data)}, type: {json.dumps(data)}}}"
  yield "    metrics:"
  for figure in figures:
    yield f"    - {{type: {json.dumps(figure.name)}, value: {figure.value:.6g}}}"


def _model(config: AlbertConfig, task: TaskSpec | None) -> str:
  architecture = (
    f"[ALBERT](https://arxiv.org/abs/1909.11942): {config.param_count():,} parameters in "
    f"{config.num_hidden_layers} layers, H = {config.hidden_size}, "
    f"E = {config.embedding_size}, {config.num_attention_heads} heads, "
    f"shared parameters: {config.sharing}, a vocabulary of {config.vocab_size:,} tokens."
  )
  lines = [architecture]
  if task is not None:
    lines.append(f"Texts are cut after {task.max_seq_length} tokens.")
    if task.label_names:
      lines.append(f"Labels: {', '.join(task.label_names)}.")
  return "\n".join(lines)


def _data(record: Mapping[str, Any], results: Mapping[str, Any]) -> str:
  """What the run was trained on, without folders."""
  settings = record.get("settings", {})
  # Pretraining has its start among the settings, fine-tuning among the sources.
  start = settings.get("init_checkpoint") or record.get("sources", {}).get("init_checkpoint")
  sources = {
    "Training records": settings.get("input_files", ()),
    "Held-out records": settings.get("eval_input_files", ()),
    "Started from": [start] if start else [],
  }
  lines = []
  if "train_examples" in results:
    lines.append(f"- Training examples: {results['train_examples']:,}")
  for title, paths in sources.items():
    names = sorted(os.path.basename(path.rstrip("/")) for path in paths)
    if len(names) > 2:
      names = [names[0], f"… ({len(names):,} files)", names[-1]]
    if names:
      lines.append(f"- {title}: {', '.join(names)}")
  for name, value in record.get("identity", {}).items():
    if name == "record_content" or name.startswith("content of"):
      lines.append(f"- Hash, {name.replace('_', ' ')}: `{value}`")
  return "\n".join(lines)


def _settings(record: Mapping[str, Any]) -> str:
  """A table of the settings that have a value, and the versions."""
  rows: list[tuple[str, object]] = []
  for name, value in _leaves(record.get("settings", {})):
    if name not in _NOT_OF_THE_MODEL and value not in (None, "", False, []):
      rows.append((name, str(value)))
  if not rows:
    return ""
  versions = ", ".join(f"{name} {value}" for name, value in record.get("versions", {}).items())
  return f"{markdown_table(('setting', 'value'), *rows)}\n\nMade with {versions}."


def _leaves(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
  """Name and value of every setting, those of groups too."""
  for name, value in settings.items():
    if isinstance(value, Mapping) and name not in _NOT_OF_THE_MODEL:
      yield from _leaves(value)
    else:
      yield name, value


def _figures_table(figures: list[Figure]) -> str:
  if not figures:
    return ""
  rows = [("metric", "value", "lowest to highest of the seeds")]
  for figure in figures:
    spread = "–"  # One seed.
    if figure.lowest < figure.highest:
      spread = f"{figure.lowest:.4f} to {figure.highest:.4f}"
    rows.append((figure.name, f"{figure.value:.4f}", spread))
  data = "On the evaluation data; names that begin with `test_`: on the test data."
  return f"{data}\n\n{markdown_table(*rows)}"
