"""One picture a study: what the arms have reached, and how; several seeds as mean and range."""

from collections.abc import Callable, Sequence
from functools import partial
import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
import numpy as np

from albert_tf import files
from albert_tf.studies.results import Row, heading
from albert_tf.studies.study import Study

# Okabe and Ito's colours, which also those tell apart who see few colours; then the same, paler.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def draw_study(study: Study, rows: Sequence[Row], path: str) -> None:
  """Draws a PNG, written atomically."""
  trained = [row for row in rows if row.reports]
  draws: list[Callable[[Axes], None]] = []
  if study.layers:
    titles = {"l2": "L2 distance of a layer's input and output", "degrees": "angle between them, degrees"}
    draws += [partial(_draw_layers, rows=trained, key=key, title=title) for key, title in titles.items()]
  else:
    draws += [partial(_draw_values, rows=trained, key=key) for key in study.metrics if study.arms]
    draws += [partial(_draw_curves, rows=trained, split=split, key=key) for split, key in study.curves]
  figure = Figure(figsize=(5.4 * len(draws), 4.6), dpi=100, layout="constrained", facecolor="white")
  grid = figure.subplots(1, len(draws), squeeze=False)[0]
  for axes, draw in zip(grid, draws, strict=True):
    draw(axes)
  figure.suptitle(f"{study.title} ({study.paper})", fontsize=12)
  handles, labels = grid[-1].get_legend_handles_labels()
  if handles:
    room = figure.get_size_inches()[0] / (0.45 + 0.065 * max(map(len, labels)))  # Inches of an entry.
    columns = min(4, len(handles), max(1, int(room)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
  image = io.BytesIO()
  figure.savefig(image, format="png")
  with files.atomic_writer(path) as stream:
    stream.write(image.getvalue())


def _color(number: int) -> str:
  return _COLORS[number % len(_COLORS)]


def _draw_values(axes: Axes, *, rows: Sequence[Row], key: str) -> None:
  """A point for every seed and a bar from mean − to mean + standard deviation, an arm that has it a line."""
  scale = 100.0 if "accuracy" in key else 1.0
  drawn = [(number, row) for number, row in enumerate(rows) if key in row.values]
  for place, (number, row) in enumerate(reversed(drawn)):
    values = scale * np.array(row.values[key])
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    axes.plot(values, [place] * len(values), "o", color=_color(number), markersize=4, alpha=0.5)
    axes.errorbar(
      [values.mean()], [place], xerr=[spread], fmt="|", color=_color(number),
      markersize=14, markeredgewidth=2, elinewidth=2, capsize=3,
    )  # fmt: skip
  axes.set_yticks(range(len(drawn)), [row.title for _, row in reversed(drawn)], fontsize=8)
  axes.set_ylim(-0.6, len(drawn) - 0.4)
  _decorate(axes, f"held-out {heading(key)}{', %' if scale > 1 else ''}")


def _draw_curves(axes: Axes, *, rows: Sequence[Row], split: str, key: str) -> None:
  """The mean over the seeds, and their range, at the steps that all of them have reported."""
  scale = 100.0 if "accuracy" in key else 1.0
  for number, row in enumerate(rows):
    curves = [
      {report["step"]: scale * report[key] for report in reports
       if report["split"] == split and report.get(key) is not None}
      for reports in row.reports
    ]  # fmt: skip
    steps = sorted(set.intersection(*map(set, curves)))
    values = np.array([[curve[step] for step in steps] for curve in curves])  # [seeds, steps]
    marker = _MARKERS[number // len(_COLORS)] if len(steps) < 40 else None
    if steps:
      _draw_range(axes, steps, values, number, row.title, marker=marker)
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  axes.set_xlabel("update", fontsize=9)
  where = "held-out" if split == "eval" else "training"
  _decorate(axes, f"{where} {heading(key)}{', %' if scale > 1 else ''}")


def _draw_layers(axes: Axes, *, rows: Sequence[Row], key: str, title: str) -> None:
  for number, row in enumerate(rows):
    values = np.array([of_seed[key] for of_seed in row.layers])  # [seeds, layers]
    if values.size:
      _draw_range(axes, range(1, values.shape[1] + 1), values, number, row.title, marker="o")
  axes.set_xlabel("layer", fontsize=9)
  axes.set_ylim(bottom=0)
  _decorate(axes, title)


def _draw_range(
  axes: Axes, x: Sequence[int], values: np.ndarray, number: int, title: str, *, marker: str | None
) -> None:
  """The mean of `values`, `[seeds, points]`, and from the least to the largest."""
  color = _color(number)
  axes.plot(x, values.mean(axis=0), color=color, marker=marker, markersize=3, linewidth=1.8, label=title)
  axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=color, alpha=0.18, linewidth=0)


def _decorate(axes: Axes, title: str) -> None:
  axes.set_title(title, fontsize=10, loc="left")
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="#e6e6e6", linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(labelsize=8, colors="#444444")
