"""curves.png: the whole run on one page, drawn from the records of metrics.jsonl."""

from collections.abc import Mapping, Sequence
import dataclasses
import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter
import numpy as np

from albert_tf import files
from albert_tf.training.reporting.goodput import CATEGORIES, PREFIX

_TRAIN, _EVAL, _BASELINE = "#2f6fab", "#d1495b", "#8a8a8a"
_SERIES_COLORS = ("#2f6fab", "#d1495b", "#3a8f5c")
_AREA_COLORS = dict(
  zip(
    CATEGORIES,
    ("#2f6fab", "#f2a33a", "#7a5ea8", "#3a8f5c", "#46b1b1", "#b5b5b5", "#d9c24c", "#d1495b", "#e6e6e6"),
    strict=True,
  )
)
_SMOOTH_FROM = 40  # Points from which a smoothed line joins the raw one.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
  """One plot: a line for each of `keys` and of `splits`, named by `labels` where there are several.

  Attributes:
    percent: values are shares.
    log: the axis is logarithmic.
    exact: values are known without noise, and so drawn from 0 and not smoothed.
    stacked: the metrics are parts of a whole, drawn as areas of their shares.
  """

  title: str
  keys: tuple[str, ...]
  splits: tuple[str, ...] = ("train", "eval")
  percent: bool = False
  log: bool = False
  labels: tuple[str, ...] = ()
  exact: bool = False
  stacked: bool = False


PANELS = (
  Panel(title="total loss", keys=("loss",)),
  Panel(title="masked-LM loss (nats)", keys=("masked_lm_loss",)),
  Panel(title="sentence loss (nats)", keys=("sentence_order_loss", "next_sentence_loss")),
  Panel(title="learning rate", keys=("learning_rate",), splits=("train",), exact=True),
  Panel(
    title="gradient, weight and update norm",
    keys=("gradient_norm", "weight_norm", "update_norm"),
    splits=("train",),
    log=True,
    labels=("gradient", "weights", "update"),
  ),
  Panel(title="masked-LM accuracy", keys=("masked_lm_accuracy",), percent=True),
  Panel(title="sentence accuracy", keys=("sentence_order_accuracy", "next_sentence_accuracy"), percent=True),
  Panel(title="examples per second", keys=("examples_per_second",), splits=("train",), exact=True),
  Panel(
    title="time since the first start",
    keys=tuple(PREFIX + name for name in CATEGORIES),
    splits=("train",),
    percent=True,
    labels=tuple(CATEGORIES),
    stacked=True,
  ),
)
_COLUMNS = 3


def draw_curves(
  records: Sequence[Mapping[str, Any]],
  path: str,
  *,
  baselines: Mapping[str, float] | None = None,
  panels: Sequence[Panel] = PANELS,
  dpi: int = 110,
) -> None:
  """Draws reports, as in metrics.jsonl, into a PNG, written atomically.

  Args:
    baselines: metric → value of a horizontal line, such as the accuracy of the most frequent piece.
    panels: the plots, in rows of three.
    dpi: dots per inch; a plot is 5.3 inches wide.
  """
  rows = len(panels) // _COLUMNS
  size = (16, 11 / 3 * rows)
  figure = Figure(figsize=size, dpi=dpi, layout="constrained", facecolor="white")
  grid = figure.subplots(rows, _COLUMNS)
  for axes, panel in zip(grid.flat, panels, strict=True):
    drawn = (
      _draw_shares(axes, panel, records)
      if panel.stacked
      else _draw_lines(axes, panel, records, baselines or {})
    )
    _decorate(axes, panel, drawn, missing="not in this run" if records else "no report yet")
    if panel in panels[-_COLUMNS:]:  # The lowest row.
      axes.set_xlabel("step", fontsize=10, color="#444444")
  legend = {
    "training batches": Line2D([], [], color=_TRAIN, linewidth=2),
    "held-out documents": Line2D([], [], color=_EVAL, linewidth=2, marker="o", markersize=4),
  }
  if baselines:
    legend["without a model"] = Line2D([], [], color=_BASELINE, linestyle="--")
  figure.legend(
    legend.values(), legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=11
  )
  image = io.BytesIO()
  figure.savefig(image, format="png")
  with files.atomic_writer(path, "wb") as stream:
    stream.write(image.getvalue())


def _draw_lines(
  axes: Axes, panel: Panel, records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float]
) -> bool:
  """Draws what there is; returns whether there is anything."""
  drawn = False
  for number, key in enumerate(panel.keys):
    for split in panel.splits:
      points = [(r["step"], r[key]) for r in records if r["split"] == split and r.get(key) is not None]
      if panel.log:
        points = [(step, value) for step, value in points if value > 0]
      if not points:
        continue
      drawn = True
      steps, values = zip(*points, strict=True)
      color = _SERIES_COLORS[number] if panel.labels else (_TRAIN if split == "train" else _EVAL)
      if split == "eval" or len(points) == 1:
        axes.plot(steps, values, color=color, linewidth=2, marker="o", markersize=4, zorder=3)
      elif panel.exact or len(points) < _SMOOTH_FROM:
        axes.plot(steps, values, color=color, linewidth=1.8)
      else:
        axes.plot(steps, values, color=color, linewidth=0.8, alpha=0.3)
        axes.plot(steps, smooth(values), color=color, linewidth=2)
      if panel.labels:
        axes.annotate(
          panel.labels[number],
          points[len(points) // 2],  # At its end, an update norm that falls to 0 would cross its name.
          (0, 5),
          textcoords="offset points",
          ha="center",
          color=color,
          fontsize=9,
        )
      if key in baselines:
        axes.axhline(baselines[key], color=_BASELINE, linestyle="--", linewidth=1.2)
  return drawn


def _draw_shares(axes: Axes, panel: Panel, records: Sequence[Mapping[str, Any]]) -> bool:
  """As `_draw_lines`, an area for each metric; those that end as a thousandth or more are named."""
  reports = [
    r for r in records if r["split"] in panel.splits and all(r.get(key) is not None for key in panel.keys)
  ]
  if not reports:
    return False
  values = np.array([[r[key] for key in panel.keys] for r in reports])  # [reports, keys]
  shares = values / np.maximum(values.sum(axis=1, keepdims=True), 1e-9)
  steps = [r["step"] for r in reports]
  if len(reports) == 1:  # An area needs two points.
    steps, shares = [0, *steps], np.repeat(shares, 2, axis=0)
  areas = axes.stackplot(steps, shares.T, colors=[_AREA_COLORS[name] for name in panel.labels])
  named = {
    f"{label} {share:.1%}": area
    for label, share, area in zip(panel.labels, shares[-1], areas, strict=True)
    if share >= 0.001
  }
  axes.legend(named.values(), named, loc="lower left", fontsize=8, framealpha=0.85)
  return True


def smooth(values: Sequence[float], *, share: float = 0.05) -> np.ndarray:
  """Mean over about `share` of the points, around each; over fewer towards the ends, which would lag else."""
  place = np.arange(len(values))
  half = np.minimum(max(1, round(share * len(values) / 2)), np.minimum(place, place[::-1]))
  sums = np.append(0.0, np.cumsum(values))
  return (sums[place + half + 1] - sums[place - half]) / (2 * half + 1)


def _decorate(axes: Axes, panel: Panel, drawn: bool, *, missing: str) -> None:
  axes.set_title(panel.title, fontsize=11, loc="left")
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="#e6e6e6", linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(labelsize=9, colors="#444444")
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  axes.margins(x=0.02, y=0.08)
  if not drawn:
    axes.text(0.5, 0.5, missing, ha="center", va="center", transform=axes.transAxes, color=_BASELINE)
    return
  if panel.percent:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
  if panel.log:
    axes.set_yscale("log")
  if panel.exact:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
