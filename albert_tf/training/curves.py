"""curves.png: the whole run on one page, drawn from the records of metrics.jsonl."""

from collections.abc import Mapping, Sequence
import dataclasses
import io
import itertools
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from albert_tf import files
from albert_tf.training.goodput import CATEGORIES, PREFIX

_TRAIN, _EVAL, _BASELINE = "#2f6fab", "#d1495b", "#8a8a8a"
_SERIES_COLORS = ("#2f6fab", "#d1495b", "#3a8f5c")
_AREA_COLORS = {
  "step": "#2f6fab",
  "input": "#f2a33a",
  "compile": "#7a5ea8",
  "evaluation": "#3a8f5c",
  "checkpoint": "#46b1b1",
  "report": "#b5b5b5",
  "restart": "#d9c24c",
  "lost": "#d1495b",
  "down": "#e6e6e6",
}
_SMOOTH_FROM = 40  # Points from which a smoothed line joins the raw one.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
  """One plot.

  Attributes:
    title: what it shows, with the unit.
    keys: the metrics, one line each.
    splits: which of "train" and "eval" are drawn.
    percent: whether values are shares.
    log: whether the axis is logarithmic.
    labels: names of the lines where there are several.
    exact: whether values are known without noise, and so drawn from 0 and not smoothed.
    stacked: whether the metrics are parts of a whole, drawn as areas of their shares.
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
  Panel(title="sentence-order loss (nats)", keys=("sentence_order_loss",)),
  Panel(title="learning rate", keys=("learning_rate",), splits=("train",), exact=True),
  Panel(
    title="gradient, weight and update norm",
    keys=("gradient_norm", "weight_norm", "update_norm"),
    splits=("train",),
    log=True,
    labels=("gradient", "weights", "update"),
  ),
  Panel(title="masked-LM accuracy", keys=("masked_lm_accuracy",), percent=True),
  Panel(title="sentence-order accuracy", keys=("sentence_order_accuracy",), percent=True),
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
  title: str = "",
  baselines: Mapping[str, float] | None = None,
) -> None:
  """Draws all panels into a PNG, written atomically.

  Args:
    records: reports with `step`, `split` and metrics, as in metrics.jsonl.
    path: of the PNG.
    title: shown above.
    baselines: metric → value of a horizontal line, such as the accuracy of the most frequent piece.
  """
  figure = Figure(figsize=(16, 11), dpi=110, layout="constrained", facecolor="white")
  FigureCanvasAgg(figure)
  grid = figure.subplots(len(PANELS) // _COLUMNS, _COLUMNS)
  for axes, panel in zip(grid.flat, PANELS, strict=True):
    drawn = (_draw_shares if panel.stacked else _draw_panel)(axes, panel, records, baselines or {})
    _decorate(axes, panel, drawn)
  handles = [
    grid[0, 0].plot([], [], color=_TRAIN, linewidth=2)[0],
    grid[0, 0].plot([], [], color=_EVAL, linewidth=2, marker="o", markersize=4)[0],
  ]
  labels = ["training batches", "held-out documents"]
  if baselines:
    handles.append(grid[0, 0].plot([], [], color=_BASELINE, linestyle="--")[0])
    labels.append("without a model")
  figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=11)
  if title:
    figure.suptitle(title, fontsize=14, fontweight="bold")
  image = io.BytesIO()
  figure.savefig(image, format="png")
  with files.atomic_writer(path, "wb") as stream:
    stream.write(image.getvalue())


def _draw_panel(
  axes: Axes, panel: Panel, records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float]
) -> bool:
  """Draws what there is; returns whether there is anything."""
  drawn = False
  for (number, key), split in itertools.product(enumerate(panel.keys), panel.splits):
    points = [(r["step"], r[key]) for r in records if r["split"] == split and r.get(key) is not None]
    if panel.log:
      points = [(step, value) for step, value in points if value > 0]
    if not points:
      continue
    drawn = True
    color = _SERIES_COLORS[number] if panel.labels else (_TRAIN if split == "train" else _EVAL)
    _draw_line(axes, points, color, marked=split == "eval", smoothed=not panel.exact)
    if panel.labels:
      axes.annotate(
        panel.labels[number],
        points[-1],
        (0, 4),
        textcoords="offset points",
        ha="right",
        color=color,
        fontsize=9,
      )
    if key in baselines:
      axes.axhline(baselines[key], color=_BASELINE, linestyle="--", linewidth=1.2)
  return drawn


def _draw_shares(
  axes: Axes, panel: Panel, records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float]
) -> bool:
  """As `_draw_panel`, an area for each metric; those that end as a thousandth or more are named."""
  del baselines
  reports = [
    r for r in records if r["split"] in panel.splits and all(r.get(key) is not None for key in panel.keys)
  ]
  rows = [[r[key] for key in panel.keys] for r in reports]
  if not rows:
    return False
  shares = [[value / max(sum(row), 1e-9) for value in row] for row in rows]
  steps = [r["step"] for r in reports]
  if len(rows) == 1:  # An area needs two points.
    steps, shares = [0, *steps], shares * 2
  colors = [_AREA_COLORS[name] for name in panel.labels]
  areas = axes.stackplot(steps, list(zip(*shares, strict=True)), colors=colors)
  named = [i for i, share in enumerate(shares[-1]) if share >= 0.001]
  axes.legend(
    [areas[i] for i in named],
    [f"{panel.labels[i]} {shares[-1][i]:.1%}" for i in named],
    loc="lower left",
    fontsize=8,
    framealpha=0.85,
  )
  return True


def _draw_line(
  axes: Axes, points: list[tuple[int, float]], color: str, *, marked: bool, smoothed: bool
) -> None:
  steps, values = zip(*points, strict=True)
  if marked or len(points) == 1:
    axes.plot(steps, values, color=color, linewidth=2, marker="o", markersize=4, zorder=3)
  elif not smoothed or len(points) < _SMOOTH_FROM:
    axes.plot(steps, values, color=color, linewidth=1.8)
  else:
    axes.plot(steps, values, color=color, linewidth=0.8, alpha=0.3)
    axes.plot(steps, smooth(values), color=color, linewidth=2)


def smooth(values: Sequence[float], *, share: float = 0.05) -> list[float]:
  """Mean over a window of about `share` of the points around each, smaller towards the ends."""
  reach = max(1, round(share * len(values) / 2))
  sums = [0.0, *itertools.accumulate(values)]
  averages = []
  for i in range(len(values)):
    half = min(reach, i, len(values) - 1 - i)  # Symmetric, so that the ends do not lag.
    averages.append((sums[i + half + 1] - sums[i - half]) / (2 * half + 1))
  return averages


def _decorate(axes: Axes, panel: Panel, drawn: bool) -> None:
  axes.set_title(panel.title, fontsize=11, loc="left")
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="#e6e6e6", linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(labelsize=9, colors="#444444")
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  axes.margins(x=0.02, y=0.08)
  if not drawn:
    axes.text(0.5, 0.5, "no report yet", ha="center", va="center", transform=axes.transAxes, color=_BASELINE)
    return
  if panel.percent:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
  if panel.log:
    axes.set_yscale("log")
  if panel.exact:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
  if panel in PANELS[-_COLUMNS:]:  # The lowest row.
    axes.set_xlabel("step", fontsize=10, color="#444444")
