"""One picture a study: what the arms have reached, and how; several seeds as mean and range."""

from collections.abc import Callable, Sequence
from functools import partial
import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import EngFormatter
import numpy as np

from albert_tf import files
from albert_tf.studies.results import Results, Row
from albert_tf.studies.study import Study
from albert_tf.studies.tables import heading, is_share

# Okabe and Ito's colours, which also those tell apart who see few colours; then the same, paler.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def draw_study(study: Study, results: Results, path: str) -> bool:
  """Draws a PNG, written atomically; returns whether there was anything to draw."""
  trained = [row for row in results.rows if row.seeds]
  if not trained:
    return False
  draws: list[Callable[[Axes], None]] = []
  if study.layers:
    titles = {"l2": "L2 distance of a layer's input and output", "degrees": "angle between them, degrees"}
    draws += [partial(_draw_layers, rows=trained, key=key, title=title) for key, title in titles.items()]
  else:
    if study.arms:
      draws += [partial(_draw_figures, rows=trained, key=key) for key in study.metrics]
    draws += [
      partial(_draw_curves, rows=trained, split=split, key=key)
      for split, key in study.curves
      if not study.arms or any(len(_curve(row, split, key)[0]) > 1 for row in trained)
    ]
  figure = Picture(figsize=(5.4 * len(draws), 4.6), dpi=100, layout="constrained", facecolor="white")
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
  with files.atomic_writer(path, "wb") as stream:
    stream.write(image.getvalue())
  return True


def _color(number: int) -> str:
  return _COLORS[number % len(_COLORS)]


def _draw_figures(axes: Axes, *, rows: Sequence[Row], key: str) -> None:
  """A point for every seed and a bar from mean − to mean + standard deviation, an arm that has it a line."""
  scale = 100.0 if is_share(key) else 1.0
  drawn = [(number, row, row.figures[key]) for number, row in enumerate(rows) if key in row.figures]
  for place, (number, _, figure) in enumerate(reversed(drawn)):
    values = [scale * value for value in figure.values]
    axes.plot(values, [place] * len(values), "o", color=_color(number), markersize=4, alpha=0.5)
    axes.errorbar(
      [scale * figure.mean], [place], xerr=[scale * (figure.spread or 0.0)], fmt="|", color=_color(number),
      markersize=14, markeredgewidth=2, elinewidth=2, capsize=3,
    )  # fmt: skip
  axes.set_yticks(range(len(drawn)), [row.title for _, row, _ in reversed(drawn)], fontsize=8)
  axes.set_ylim(-0.6, len(drawn) - 0.4)
  _decorate(axes, f"held-out {heading(key)}{', %' if is_share(key) else ''}")


def _curve(row: Row, split: str, key: str) -> tuple[list[int], np.ndarray]:
  """The steps that all seeds have reported, and what they have reported there, `[seeds, steps]`."""
  scale = 100.0 if is_share(key) else 1.0
  curves = [
    {
      report["step"]: scale * report[key]
      for report in reports
      if report["split"] == split and report.get(key) is not None
    }
    for reports in row.reports
  ]
  steps = sorted(set.intersection(*map(set, curves))) if curves else []
  return steps, np.array([[curve[step] for step in steps] for curve in curves])


def _draw_curves(axes: Axes, *, rows: Sequence[Row], split: str, key: str) -> None:
  """The mean over the seeds, and their range."""
  for number, row in enumerate(rows):
    steps, values = _curve(row, split, key)
    if not steps:
      continue
    axes.plot(
      steps, values.mean(axis=0), color=_color(number), linewidth=1.8, label=row.title,
      marker=_MARKERS[number // len(_COLORS)] if len(steps) < 40 else None, markersize=3,
    )  # fmt: skip
    if len(values) > 1:
      axes.fill_between(
        steps, values.min(axis=0), values.max(axis=0), color=_color(number), alpha=0.18, linewidth=0
      )
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  axes.set_xlabel("update", fontsize=9)
  where = "held-out" if split == "eval" else "training"
  _decorate(axes, f"{where} {heading(key)}{', %' if is_share(key) else ''}")


def _draw_layers(axes: Axes, *, rows: Sequence[Row], key: str, title: str) -> None:
  for number, row in enumerate(rows):
    values = np.array([of_seed[key] for of_seed in row.layers])  # [seeds, layers]
    if values.size:
      layers = np.arange(1, values.shape[1] + 1)
      axes.plot(layers, values.mean(axis=0), color=_color(number), marker="o", markersize=4, label=row.title)
      axes.fill_between(
        layers, values.min(axis=0), values.max(axis=0), color=_color(number), alpha=0.18, linewidth=0
      )
  axes.set_xlabel("layer", fontsize=9)
  axes.set_ylim(bottom=0)
  _decorate(axes, title)


def _decorate(axes: Axes, title: str) -> None:
  axes.set_title(title, fontsize=10, loc="left")
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="#e6e6e6", linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(labelsize=8, colors="#444444")
