"""What fine-tuned classifiers lose and save when answers stop early, through their SavedModels.

Takes runs of several seeds. RUNS/section/seed_1 is a run with --train_depths on TASKS/section/train.csv; beside it,
RUNS/section.plain/seed_1 is one that was fine-tuned at full depth alone, whose upper layers are cut off. Each is
exported. A task is a folder with eval.csv, of the columns text and label, such as those of `docstring_tasks.py`.
Where `transformers` is installed, it answers too, with the same weights converted.

The accuracy is that of eval.csv as the SavedModel answers it; texts keep their own lengths. Prints one JSON line: for
each task and each way to answer the accuracy of each run, mean layers, and milliseconds a text at batches of 1, 8 and
32, as medians over the runs. --output_dir gets the same as a table and a picture.

Example:
  python benchmarks/early_exit_runs.py --tasks=section,package --data_dir=tasks --runs_dir=runs --output_dir=early_exit
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import csv
import functools
import importlib.util
import os
import statistics
import tempfile
from typing import Any, NamedTuple

from absl import flags
import measuring
import numpy as np

from albert_tf import files, json_files

_TASKS = flags.DEFINE_list("tasks", None, "Names of the tasks.", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of the tasks' data.", required=True)
_RUNS_DIR = flags.DEFINE_string("runs_dir", None, "Folder of the runs, by task.", required=True)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Folder for early_exit.md and .png.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the median counts.", lower_bound=1)
_TIMED_TEXTS = flags.DEFINE_integer("timed_texts", 128, "Texts of a round.", lower_bound=32)
_BATCH_SIZES = (1, 8, 32)
_LARGEST_BATCH = max(_BATCH_SIZES)
_TOLERANCES = (0.0, 0.5, 2.0)  # Points of 100 that the accuracy may lose.
_PATIENCE = (1, 2, 3)  # So many depths in a row agree with the one before.
_FULL_DEPTH = "full depth"


class Answers(NamedTuple):
  """A model's answers to n texts."""

  probabilities: np.ndarray  # [n, C]
  layers: np.ndarray  # [n]: how many each text took.


Answer = Callable[[np.ndarray], Answers]  # Texts [n] → answers.


class Figures(NamedTuple):
  """One way to answer, in one run."""

  accuracy: float
  mean_layers: float
  milliseconds: Mapping[int, float]  # Size of a batch → time of a text; empty where not timed.


class Row(NamedTuple):
  """One way to answer, in all runs of a task: medians, and every accuracy."""

  accuracies: list[float]
  mean_layers: float
  milliseconds: dict[int, float]


Table = dict[str, Row]  # By the name of the way.


def _measure() -> Mapping[str, Any]:
  tables = {task: _table(task) for task in _TASKS.value}
  if _OUTPUT_DIR.value:
    files.makedirs(_OUTPUT_DIR.value)
    page = "\n".join(_markdown_lines(tables))
    files.write_text(os.path.join(_OUTPUT_DIR.value, "early_exit.md"), page)
    _draw(tables, os.path.join(_OUTPUT_DIR.value, "early_exit.png"))
  named = {
    task: {way: row._asdict() for way, row in table.items()} for task, table in tables.items()
  }
  return {"tasks": named}


def _table(task: str) -> Table:
  """The rows of a task: all of its seeds together."""
  names = files.listdir(os.path.join(_RUNS_DIR.value, task))
  # Beside the seeds lies what run_glue.py made of all of them.
  seeds = sorted(name for name in names if name.startswith("seed_"))
  of_runs = [_figures_of_run(task, seed) for seed in seeds]
  first_run = of_runs[0]
  table = {}
  for way in first_run:
    figures = [of_run[way] for of_run in of_runs]
    milliseconds = {
      size: round(statistics.median(run.milliseconds[size] for run in figures), 3)
      for size in first_run[way].milliseconds
    }
    table[way] = Row(
      accuracies=[round(run.accuracy, 4) for run in figures],
      mean_layers=round(statistics.median(run.mean_layers for run in figures), 3),
      milliseconds=milliseconds,
    )
  return table


# ---------------------------------------------------------------------- one run


def _figures_of_run(task: str, seed: str) -> dict[str, Figures]:
  """Way to answer → its figures."""
  run = os.path.join(_RUNS_DIR.value, task, seed)
  plain_run = os.path.join(_RUNS_DIR.value, f"{task}.plain", seed)
  with tempfile.TemporaryDirectory() as folder:
    # 1. All ways to answer.
    loaded, model = _exported(run, f"{folder}/early")
    depths = model.exit_depths()
    ways = dict(_fixed_ways(loaded, depths, full=_FULL_DEPTH, shallower="{} layers"))
    ways.update(_early_ways(loaded, run))
    if files.isdir(plain_run):
      plain, _ = _exported(plain_run, f"{folder}/plain", depths)
      ways.update(_fixed_ways(plain, depths, full="trained at full depth", shallower="cut to {}"))
    if importlib.util.find_spec("transformers"):
      ways["transformers"] = _transformers_way(run, f"{folder}/transformers", depths[-1])

    # 2. The answers of each, and their times, while the SavedModels are there.
    texts, labels = _examples(task, model.task.label_names)
    answers = {way: _all_answers(answer, texts) for way, answer in ways.items()}
    milliseconds = _times(ways, texts[: _TIMED_TEXTS.value])

  # 3. Patience is not in the SavedModel: its answers follow from those of the depths, without a time.
  of_depths = [answers[f"{depth} layers"] for depth in depths[:-1]]
  of_depths.append(answers[_FULL_DEPTH])
  for patience in _PATIENCE:
    answers[f"patience of {patience}"] = _patient_answers(of_depths, patience)
  return {
    way: Figures(
      accuracy=float(np.mean(of_way.probabilities.argmax(-1) == labels)),
      mean_layers=float(np.mean(of_way.layers)),
      milliseconds=milliseconds.get(way, {}),
    )
    for way, of_way in answers.items()
  }


def _exported(run: str, path: str, depths: Sequence[int] = ()) -> tuple[Any, Any]:
  """The SavedModel of a run, loaded, and the model; by default it has its own exit depths."""
  from albert_tf import AlbertClassifier
  from albert_tf.serving.loaded_model import LoadedModel

  model = AlbertClassifier.from_pretrained(run)
  model.export(f"{path}/1", depths=depths or model.exit_depths())
  return LoadedModel(f"{path}/1"), model


def _examples(task: str, label_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """The texts of eval.csv, and their classes as numbers."""
  path = os.path.join(_DATA_DIR.value, task, "eval.csv")
  with open(path, encoding="utf-8", newline="") as stream:
    rows = list(csv.DictReader(stream))
  texts = np.array([row["text"] for row in rows], object)
  labels = np.array([label_names.index(row["label"]) for row in rows])
  return texts, labels


# ---------------------------------------------------------------------- ways to answer


def _fixed_ways(
  loaded: Any, depths: Sequence[int], *, full: str, shallower: str
) -> Iterator[tuple[str, Answer]]:
  """The signature of each depth, the deepest first.

  Args:
    loaded: the SavedModel.
    depths: ascending.
    full: the name of the deepest.
    shallower: the name of any other; {} is its number of layers.
  """
  yield full, functools.partial(_at_depth, loaded, "serving_default", depths[-1])
  for depth in depths[:-1]:
    yield shallower.format(depth), functools.partial(_at_depth, loaded, f"depth_{depth}", depth)


def _at_depth(loaded: Any, signature: str, depth: int, texts: np.ndarray) -> Answers:
  outputs = loaded.run(signature, {"text": texts})
  return Answers(outputs["probabilities"], np.full(len(texts), depth))


def _early_ways(loaded: Any, run: str) -> Iterator[tuple[str, Answer]]:
  """Early exit at each tolerance, with the threshold of the run's own table."""
  from albert_tf.configs.task import RESULTS_FILE
  from albert_tf.finetuning import exit_table

  results = json_files.read(os.path.join(run, RESULTS_FILE))
  rows = [exit_table.ExitRow(**row) for row in results["early_exit"]["rows"]]
  for tolerance in _TOLERANCES:
    threshold = exit_table.fastest_row(rows, tolerance).threshold
    yield f"early, {tolerance:g} points", functools.partial(_early, loaded, threshold)


def _early(loaded: Any, threshold: float, texts: np.ndarray) -> Answers:
  # One threshold for all texts.
  inputs = {"text": texts, "threshold": np.array([threshold], np.float32)}
  outputs = loaded.run("early_exit", inputs)
  return Answers(outputs["probabilities"], outputs["layers"])


def _transformers_way(run: str, folder: str, num_layers: int) -> Answer:
  """The run's weights in `transformers`, with its tokenizer, on PyTorch."""
  import torch
  import transformers

  from albert_tf.checkpoints.convert import convert
  from albert_tf.checkpoints.settings import ConvertOptions

  convert(run, folder, ConvertOptions(output_format="huggingface"))
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

  def answer(texts: np.ndarray) -> Answers:
    # Each batch is as long as its longest text, as in the SavedModel.
    batch = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
      logits = model(**batch).logits
    return Answers(logits.softmax(-1).numpy(), np.full(len(texts), num_layers))

  return answer


def _patient_answers(of_depths: Sequence[Answers], patience: int) -> Answers:
  """The rule of PABEE (arXiv 2006.04152): a text stops when so many depths in a row agree with the one before.

  Args:
    of_depths: the answers at each depth, ascending.
    patience: that number of depths.
  """
  shallowest, *deeper = of_depths
  probabilities = shallowest.probabilities.copy()  # [n, C]
  layers = shallowest.layers.copy()
  num_agreeing = np.zeros(len(layers), int)
  for at_depth in deeper:
    # A text that has stopped keeps its answer, and its number of layers.
    goes_on = num_agreeing < patience
    agrees = at_depth.probabilities.argmax(-1) == probabilities.argmax(-1)
    num_agreeing[goes_on] = np.where(agrees, num_agreeing + 1, 0)[goes_on]
    probabilities[goes_on] = at_depth.probabilities[goes_on]
    layers[goes_on] = at_depth.layers[goes_on]
  return Answers(probabilities, layers)


def _all_answers(answer: Answer, texts: np.ndarray) -> Answers:
  batches = [answer(batch) for batch in _batches(texts, _LARGEST_BATCH)]
  return Answers(
    probabilities=np.concatenate([batch.probabilities for batch in batches]),
    layers=np.concatenate([batch.layers for batch in batches]),
  )


def _batches(texts: np.ndarray, size: int) -> Iterator[np.ndarray]:
  for start in range(0, len(texts), size):
    yield texts[start : start + size]


def _times(ways: Mapping[str, Answer], texts: np.ndarray) -> dict[str, dict[int, float]]:
  """Way → size of a batch → milliseconds a text."""
  milliseconds: dict[str, dict[int, float]] = {way: {} for way in ways}
  for size in _BATCH_SIZES:
    sides = {
      way: functools.partial(_answer_in_batches, answer, texts, size)
      for way, answer in ways.items()
    }
    for way, times in measuring.median_times(sides, _ROUNDS.value).items():
      milliseconds[way][size] = 1e3 * times.wall / len(texts)
  return milliseconds


def _answer_in_batches(answer: Answer, texts: np.ndarray, size: int) -> None:
  for batch in _batches(texts, size):
    answer(batch)


# ---------------------------------------------------------------------- table and picture


def _markdown_lines(tables: Mapping[str, Table]) -> Iterator[str]:
  sizes = " | ".join(f"batch {size}" for size in _BATCH_SIZES)
  for task, table in tables.items():
    yield f"| {task} | accuracy: mean (least to greatest) | mean layers | ms a text: {sizes} |"
    yield "|---" * (3 + len(_BATCH_SIZES)) + "|"
    for way, row in table.items():
      percent = [100 * accuracy for accuracy in row.accuracies]
      accuracy = f"{statistics.mean(percent):.1f} ({min(percent):.1f} to {max(percent):.1f})"
      times = " | ".join(_time_cells(row, full_depth=table[_FULL_DEPTH]))
      yield f"| {way} | {accuracy} | {row.mean_layers:.1f} | {times} |"
    yield ""


def _time_cells(row: Row, *, full_depth: Row) -> Iterator[str]:
  """Milliseconds at each size of a batch, and how much faster than all layers."""
  for size in _BATCH_SIZES:
    if size in row.milliseconds:
      faster = full_depth.milliseconds[size] / row.milliseconds[size]
      yield f"{row.milliseconds[size]:.2f} ({faster:.2f}×)"
    else:
      yield "–"


class _Line(NamedTuple):
  """A line of the picture: its label and look."""

  label: str
  marker: str
  color: str


_EARLY = _Line("stops early", "o", "#d1495b")
_FIXED = _Line("fixed depth, same weights", "s", "#2f6fab")
_CUT = _Line("trained at full depth, cut", "x", "#777777")
_TRANSFORMERS = _Line("transformers", "^", "#3a7d44")


def _line_of(way: str) -> _Line:
  if way.startswith("early"):
    return _EARLY
  if way.startswith(("cut", "trained")):
    return _CUT
  if way == "transformers":
    return _TRANSFORMERS
  return _FIXED


def _draw(tables: Mapping[str, Table], path: str) -> None:
  """A panel for each task: the accuracy over the time of a text at the largest batch."""
  from matplotlib.figure import Figure

  from albert_tf.pretraining.curves import save_png

  figure = Figure(figsize=(5 * len(tables), 4.2), dpi=110, layout="constrained", facecolor="white")
  (panels,) = figure.subplots(1, len(tables), squeeze=False)
  for axes, (task, table) in zip(panels, tables.items(), strict=True):
    axes.set_title(task, loc="left")
    axes.set_xlabel(f"milliseconds a text, batches of {_LARGEST_BATCH}")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    for line in (_EARLY, _FIXED, _CUT, _TRANSFORMERS):
      points = []
      for way, row in table.items():
        # Patience has no times.
        if row.milliseconds and _line_of(way) == line:
          mean_accuracy = 100 * statistics.mean(row.accuracies)
          points.append((row.milliseconds[_LARGEST_BATCH], mean_accuracy))
      points.sort()
      times = [time for time, _ in points]
      accuracies = [accuracy for _, accuracy in points]
      axes.plot(
        times, accuracies, marker=line.marker, color=line.color, linewidth=1, label=line.label
      )
  panels[0].set_ylabel("accuracy on held-out texts, mean of the seeds, %")
  panels[-1].legend(frameon=False)
  save_png(figure, path)


if __name__ == "__main__":
  measuring.run(_measure)
