"""table.md, table.csv and table.json of a study."""

from collections.abc import Sequence
import csv
import io
import json
from typing import Any

from albert_tf import files
from albert_tf.studies.results import Figure, Results, Row

_HEADINGS = {
  "parameters": "parameters",
  "examples_per_second": "examples/s",
  "speedup": "speed, measured",
  "tpu_speedup": "speed, TPU v3",
  "masked_lm_loss": "masked-LM loss",
  "masked_lm_accuracy": "masked LM",
  "train_masked_lm_loss": "masked-LM loss in training",
  "train_masked_lm_accuracy": "masked LM in training",
  "sentence_accuracy": "sentence task",
  "masked_lm_accuracy@ordered": "masked LM",
  "next_sentence_accuracy@nsp": "NSP",
  "sentence_order_accuracy@sop": "SOP",
  "layer_l2": "L2 of a layer",
  "layer_degrees": "angle of a layer",
  "score@average": "average of tasks",
  "steps": "updates",
  "hours": "hours",
}
_TABLES = ("table.md", "table.csv", "table.json")


def heading(key: str) -> str:
  """What a metric is called in tables and plots."""
  return _HEADINGS.get(key, key.removeprefix("score@").replace("_", " "))


def is_share(key: str) -> bool:
  """Whether a metric is a share, shown in percent."""
  return "accuracy" in key


def columns_of(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
  """The metrics that the table shows: the study's, speed, and scores of tasks; of these only what somebody has."""
  there = {key for row in rows for key in row.figures}
  scores = sorted(key for key in there if key.startswith("score@"))
  first, *rest = columns
  wanted = [first, "examples_per_second", *rest, *scores]
  if "speedup" in columns:
    wanted.insert(2, "tpu_speedup")
  return [key for key in dict.fromkeys(wanted) if key in there]


def format_figure(key: str, figure: Figure | None) -> str:
  """Mean ± standard deviation over the seeds; a dash where nothing was measured."""
  if figure is None:
    return "–"
  if key in ("parameters", "steps"):
    return f"{figure.mean:,.0f}"
  scale, unit = (100.0, " %") if is_share(key) else (1.0, "")
  digits = 1 if is_share(key) or key.startswith("score@") else (3 if "loss" in key else 2)
  if key == "examples_per_second":
    digits = 0 if figure.mean >= 10 else 2
  spread = "" if figure.spread is None else f" ± {scale * figure.spread:,.{digits}f}"
  return f"{scale * figure.mean:,.{digits}f}{spread}{unit}"


def markdown(title: str, columns: Sequence[str], results: Results, lines: Sequence[str]) -> str:
  """The table with what must be known to read it."""
  papers = list(dict.fromkeys(key for row in results.rows for key in row.paper))
  header = ["", *map(heading, columns), *(f"paper: {key}" for key in papers)]
  table = [header, ["---"] * len(header)]
  for row in results.rows:
    measured = [format_figure(key, row.figures.get(key)) for key in columns]
    table.append([row.title, *measured, *(_paper(row.paper.get(key)) for key in papers)])
  body = ["| " + " | ".join(cells) + " |" for cells in table]
  return "\n".join([f"# {title}", "", *lines, "", *body, *(f"\n{note}." for note in results.notes), ""])


def _paper(value: Any) -> str:
  return "–" if value is None else str(value)


def comma_separated(columns: Sequence[str], results: Results) -> str:
  """One line an arm: mean, standard deviation and number of seeds of every metric, then the paper's figures."""
  papers = list(dict.fromkeys(key for row in results.rows for key in row.paper))
  stream = io.StringIO()
  writer = csv.writer(stream, lineterminator="\n")
  measured = [name for key in columns for name in (key, f"{key} sd")]
  writer.writerow(["arm", "seeds", *measured, *(f"paper {key}" for key in papers)])
  for row in results.rows:
    cells: list[Any] = []
    for key in columns:
      figure = row.figures.get(key)
      cells += ["", ""] if figure is None else [figure.mean, "" if figure.spread is None else figure.spread]
    writer.writerow([row.name, len(row.seeds), *cells, *(row.paper.get(key, "") for key in papers)])
  return stream.getvalue()


def as_dict(results: Results) -> dict[str, Any]:
  """Every figure of every seed, not only the columns of the table."""
  return {
    "rows": [
      {
        "arm": row.name,
        "title": row.title,
        "seeds": list(row.seeds),
        "figures": {
          key: {"mean": figure.mean, "standard_deviation": figure.spread, "values": list(figure.values)}
          for key, figure in row.figures.items()
        },
        "layers": [dict(of_seed) for of_seed in row.layers],
        "paper": dict(row.paper),
      }
      for row in results.rows
    ],
    "notes": list(results.notes),
  }


def write_tables(
  directory: str, title: str, columns: Sequence[str], results: Results, *, lines: Sequence[str], about: Any
) -> str:
  """Writes the three files; returns the Markdown.

  Args:
    columns: of the study; see `columns_of`.
    lines: above the table: what was run, and when.
    about: into table.json: the settings.
  """
  shown = columns_of(columns, results.rows)
  text = markdown(title, shown, results, lines)
  record = json.dumps({"about": about, **as_dict(results)}, indent=2, ensure_ascii=False) + "\n"
  contents = (text, comma_separated(shown, results), record)
  for name, content in zip(_TABLES, contents, strict=True):
    with files.atomic_writer(f"{directory}/{name}", "w") as stream:
      stream.write(content)
  return text
