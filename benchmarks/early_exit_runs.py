"""What fine-tuned runs lose and save when answers stop early, through their SavedModels.

Takes runs of several seeds. RUNS/mrpc/seed_1 is a run of MRPC with --train_depths; beside it, RUNS/mrpc.plain/seed_1
is one that was fine-tuned at full depth alone, whose upper layers are cut off. Each is exported. A task is one of GLUE,
or a folder with eval.csv, such as those of `docstring_tasks.py`.
Where `transformers` is installed, it answers too, with the same weights converted.

The metric is that of the evaluation split as the SavedModel answers it; texts keep their own lengths. Prints one JSON
line: for each task and each way to answer the metric of each run, mean layers, and milliseconds a text at batches of
1, 8 and 32, as medians over the runs. --output_dir gets the same as a table and a picture.

Example:
  python benchmarks/early_exit_runs.py --tasks=section,package --data_dir=tasks --runs_dir=runs --output_dir=early_exit
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import importlib.util
import os
import statistics
import tempfile
from typing import Any

from absl import flags
import common
import numpy as np

from albert_tf import files, json_files

_TASKS = flags.DEFINE_list("tasks", None, "Names of the tasks.", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of the tasks' data.", required=True)
_RUNS_DIR = flags.DEFINE_string("runs_dir", None, "Folder of the runs, by task.", required=True)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Folder for early_exit.md and .png.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the median counts.", lower_bound=1)
_TIMED_TEXTS = flags.DEFINE_integer("timed_texts", 128, "Texts of a round.", lower_bound=32)
_BATCH_SIZES = (1, 8, 32)
_EVALUATION_BATCH = 32
_TOLERANCES = (0.0, 0.5, 2.0)  # Points of 100 that the metric may lose.
_PATIENCE = (1, 2, 3)  # So many depths in a row agree with the one before.
_FULL_DEPTH = "full depth"

Columns = Mapping[str, np.ndarray]
# Texts by column → outputs by name: "probabilities" or "value", and "layers".
Answer = Callable[[Columns], Mapping[str, np.ndarray]]
Figures = dict[str, dict[str, Any]]


def _measure() -> Mapping[str, Any]:
  tables = {}
  for task_name in _TASKS.value:
    of_runs = [_figures_of_run(task_name, seed_folder) for seed_folder in _seeds(task_name)]
    tables[task_name] = _median_over_runs(of_runs)
  if _OUTPUT_DIR.value:
    files.makedirs(_OUTPUT_DIR.value)
    files.write_text(os.path.join(_OUTPUT_DIR.value, "early_exit.md"), "\n".join(_table(tables)))
    _draw(tables, os.path.join(_OUTPUT_DIR.value, "early_exit.png"))
  return {"tasks": tables}


def _seeds(task_name: str) -> list[str]:
  """Folders of the seeds of a task, such as seed_1."""
  names = files.listdir(os.path.join(_RUNS_DIR.value, task_name))
  return sorted(name for name in names if name.startswith("seed_"))


def _median_over_runs(of_runs: Sequence[Figures]) -> Figures:
  """All metrics, and the medians of the other figures."""
  table: Figures = {}
  for way in of_runs[0]:
    rows = [figures[way] for figures in of_runs]
    table[way] = {"metric": [round(row["metric"], 4) for row in rows]}
    for key in rows[0].keys() - {"metric"}:
      table[way][key] = round(statistics.median(row[key] for row in rows), 3)
  return table


# ---------------------------------------------------------------------- one run


def _figures_of_run(task_name: str, seed_folder: str) -> Figures:
  """Way to answer → metric, mean layers and times."""
  run = os.path.join(_RUNS_DIR.value, task_name, seed_folder)
  plain_run = os.path.join(_RUNS_DIR.value, f"{task_name}.plain", seed_folder)
  with tempfile.TemporaryDirectory() as folder:
    loaded, model = _exported(run, f"{folder}/early")
    depths = model.exit_depths()
    task = _task(task_name, model)
    ways = dict(_depth_ways(loaded, depths, _FULL_DEPTH, "{} layers"))
    ways.update(_early_ways(loaded, run))
    if files.isdir(plain_run):
      plain, _ = _exported(plain_run, f"{folder}/plain", depths)
      ways.update(_depth_ways(plain, depths, "trained at full depth", "cut to {}"))
    if importlib.util.find_spec("transformers"):
      ways["transformers"] = _transformers_way(run, f"{folder}/transformers", depths[-1])

    examples = task.split("eval")
    columns = {"text": np.array([example.text for example in examples], object)}
    if task.spec.pair:
      columns["text_pair"] = np.array([example.pair for example in examples], object)
    answers = {way: _all_answers(answer, columns) for way, answer in ways.items()}
    figures = {
      way: {
        "metric": _metric(task, outputs),
        "mean_layers": float(np.mean(outputs["layers"])),
      }
      for way, outputs in answers.items()
    }
    for way, milliseconds in _times(ways, columns).items():
      figures[way] |= milliseconds
    if task.spec.kind == "classification":
      of_depths = [
        answers[way] for way in (*(f"{depth} layers" for depth in depths[:-1]), _FULL_DEPTH)
      ]
      for patience in _PATIENCE:
        outputs = _patient_answers(of_depths, patience)
        figures[f"patience of {patience}"] = {
          "metric": _metric(task, outputs),
          "mean_layers": float(np.mean(outputs["layers"])),
        }
  return figures


def _task(name: str, model: Any) -> Any:
  """The task with its evaluation data."""
  from albert_tf.finetuning.data import TableColumns
  from albert_tf.finetuning.tasks.glue import find_task, glue_task
  from albert_tf.finetuning.tasks.tables import table_task

  common_options = {
    "tokenizer": model.preprocessor.tokenizer,
    "max_seq_length": model.task.max_seq_length,
  }
  table = os.path.join(_DATA_DIR.value, name, "eval.csv")
  if not files.exists(table):
    return glue_task(find_task(name), data_dir=_DATA_DIR.value, **common_options)
  return table_task(
    {"train": "", "eval": table, "test": ""},
    columns=TableColumns(),
    label_names=model.task.label_names,
    **common_options,
  )


def _exported(run: str, path: str, depths: Sequence[int] | None = None) -> tuple[Any, Any]:
  """The SavedModel of a run, loaded, and the model; by default it has its own exit depths."""
  from albert_tf import AlbertClassifier
  from albert_tf.serving.loaded_model import LoadedModel

  model = AlbertClassifier.from_pretrained(run)
  model.export(f"{path}/1", depths=depths or model.exit_depths())
  return LoadedModel(f"{path}/1"), model


def _depth_ways(
  loaded: Any, depths: Sequence[int], full_name: str, shallow_name: str
) -> Iterator[tuple[str, Answer]]:
  """The signature of each depth, the deepest first."""
  *shallow_depths, full = depths
  yield full_name, functools.partial(_fixed_depth, loaded, "serving_default", full)
  for depth in shallow_depths:
    yield (
      shallow_name.format(depth),
      functools.partial(_fixed_depth, loaded, f"depth_{depth}", depth),
    )


def _fixed_depth(loaded: Any, signature: str, depth: int, columns: Columns) -> Columns:
  outputs = loaded.run(signature, columns)
  return outputs | {"layers": np.full(len(columns["text"]), depth)}


def _early_ways(loaded: Any, run: str) -> Iterator[tuple[str, Answer]]:
  """Early exit at each tolerance, with the threshold of the run's own table."""
  from albert_tf.configs.task import RESULTS_FILE
  from albert_tf.finetuning import exit_table

  results = json_files.read(os.path.join(run, RESULTS_FILE))
  rows = [exit_table.ExitRow(**row) for row in results["early_exit"]["rows"]]
  for tolerance in _TOLERANCES:
    threshold = exit_table.fastest_row(rows, tolerance).threshold
    yield f"early, {tolerance:g} points", functools.partial(_early, loaded, threshold)


def _early(loaded: Any, threshold: float, columns: Columns) -> Columns:
  return loaded.run("early_exit", {**columns, "threshold": np.array([threshold], np.float32)})


def _transformers_way(run: str, folder: str, num_layers: int) -> Answer:
  """The run's weights in `transformers`, with its tokenizer, on PyTorch."""
  import torch
  import transformers

  from albert_tf.checkpoints.convert import convert
  from albert_tf.checkpoints.settings import ConvertOptions

  convert(run, folder, ConvertOptions(output_format="huggingface"))
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

  def answer(columns: Columns) -> Columns:
    texts = [list(column) for column in columns.values()]
    batch = tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
      logits = model(**batch).logits
    outputs = {"layers": np.full(len(texts[0]), num_layers)}
    if model.config.num_labels == 1:
      return outputs | {"value": logits[:, 0].numpy()}
    return outputs | {"probabilities": logits.softmax(-1).numpy()}

  return answer


def _patient_answers(of_depths: Sequence[Columns], patience: int) -> Columns:
  """The rule of PABEE (arXiv 2006.04152): a text stops when so many depths in a row agree with the one before.

  Args:
    of_depths: the answers at each depth, ascending.
    patience: that number of depths.
  """
  probabilities = of_depths[0]["probabilities"].copy()  # [n, C]
  layers = of_depths[0]["layers"].copy()
  num_agreeing = np.zeros(len(layers), int)
  for outputs in of_depths[1:]:
    goes_on = num_agreeing < patience
    agrees = outputs["probabilities"].argmax(-1) == probabilities.argmax(-1)
    num_agreeing[goes_on] = np.where(agrees, num_agreeing + 1, 0)[goes_on]
    probabilities[goes_on] = outputs["probabilities"][goes_on]
    layers[goes_on] = outputs["layers"][goes_on]
  return {"probabilities": probabilities, "layers": layers}


# ---------------------------------------------------------------------- metric and times


def _all_answers(answer: Answer, columns: Columns) -> dict[str, np.ndarray]:
  batches = [answer(batch) for batch in _batches(columns, _EVALUATION_BATCH)]
  return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def _batches(columns: Columns, size: int) -> Iterator[Columns]:
  for start in range(0, len(columns["text"]), size):
    yield {key: values[start : start + size] for key, values in columns.items()}


def _metric(task: Any, outputs: Columns) -> float:
  """The task's best metric, of what the SavedModel answered."""
  from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT

  if task.spec.kind == "regression":
    of_rows = outputs["value"][:, np.newaxis]  # [n, 1]
  else:
    of_rows = np.log(outputs["probabilities"] + 1e-30)  # [n, C]
  return float(task.evaluate({UNNAMED_OUTPUT: of_rows}, "eval")[task.best_metric])


def _times(ways: Mapping[str, Answer], columns: Columns) -> dict[str, dict[str, float]]:
  """Way → "ms_N", milliseconds a text at batches of N."""
  timed = {key: values[: _TIMED_TEXTS.value] for key, values in columns.items()}
  num_texts = len(timed["text"])
  milliseconds: dict[str, dict[str, float]] = {way: {} for way in ways}
  for size in _BATCH_SIZES:
    work = {way: functools.partial(_seconds, answer, timed, size) for way, answer in ways.items()}
    # The first round is the warm-up.
    for way, rounds in common.in_turn(work, _ROUNDS.value + 1).items():
      milliseconds[way][f"ms_{size}"] = 1e3 * statistics.median(rounds[1:]) / num_texts
  return milliseconds


def _seconds(answer: Answer, columns: Columns, size: int) -> float:
  def answer_all() -> None:
    for batch in _batches(columns, size):
      answer(batch)

  return common.timed(answer_all).wall


# ---------------------------------------------------------------------- table and picture


def _table(tables: Mapping[str, Figures]) -> Iterator[str]:
  """Lines of Markdown."""
  times = " | ".join(f"batch {size}" for size in _BATCH_SIZES)
  for task_name, figures in tables.items():
    yield f"| {task_name} | metric: mean (least to greatest) | mean layers | ms a text: {times} |"
    yield "|---" * (3 + len(_BATCH_SIZES)) + "|"
    full = figures[_FULL_DEPTH]
    for way, row in figures.items():
      metrics = [100 * metric for metric in row["metric"]]
      metric = f"{statistics.mean(metrics):.1f} ({min(metrics):.1f} to {max(metrics):.1f})"
      cells = []
      for size in _BATCH_SIZES:
        key = f"ms_{size}"
        if key in row:
          cells.append(f"{row[key]:.2f} ({full[key] / row[key]:.2f}×)")
        else:
          cells.append("–")
      yield f"| {way} | {metric} | {row['mean_layers']:.1f} | {' | '.join(cells)} |"
    yield ""


def _draw(tables: Mapping[str, Figures], path: str) -> None:
  """A panel for each task: the metric over the time of a text at the largest batch."""
  from matplotlib.figure import Figure

  from albert_tf.pretraining.curves import save_png

  styles = {
    "stops early": ("o", "#d1495b", lambda way: way.startswith("early")),
    "fixed depth, same weights": (
      "s",
      "#2f6fab",
      lambda way: way.endswith(" layers") or way == _FULL_DEPTH,
    ),
    "trained at full depth, cut": ("x", "#777777", lambda way: way.startswith(("cut", "trained"))),
    "transformers": ("^", "#3a7d44", lambda way: way == "transformers"),
  }
  figure = Figure(figsize=(5 * len(tables), 4.2), dpi=110, layout="constrained", facecolor="white")
  panels = figure.subplots(1, len(tables), squeeze=False)[0]
  key = f"ms_{_BATCH_SIZES[-1]}"
  for axes, (task_name, figures) in zip(panels, tables.items(), strict=True):
    axes.set_title(task_name, loc="left")
    axes.set_xlabel(f"milliseconds a text, batches of {_BATCH_SIZES[-1]}")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    for label, (marker, color, belongs) in styles.items():
      rows = [row for way, row in figures.items() if belongs(way) and key in row]
      rows.sort(key=lambda row: row[key])
      means = [100 * statistics.mean(row["metric"]) for row in rows]
      times = [row[key] for row in rows]
      axes.plot(times, means, marker=marker, color=color, linewidth=1, label=label)
  panels[0].set_ylabel("metric on the evaluation split, mean of the seeds")
  panels[-1].legend(frameon=False)
  save_png(figure, path)


if __name__ == "__main__":
  common.run(_measure)
