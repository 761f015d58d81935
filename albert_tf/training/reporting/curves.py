"""curves.png: the whole run on one page, drawn from the records of metrics.jsonl."""

from collections.abc import Mapping, Sequence
import io
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from albert_tf import files

_COLORS = {"train": "#2f6fab", "eval": "#d1495b"}
_SERIES_COLORS = ("#2f6fab", "#d1495b", "#3a8f5c")
_BASELINE = "#8a8a8a"


class Panel(NamedTuple):
  """One plot: a line for each of `keys` and each split, named by `labels` where several keys are in one report."""

  title: str
  keys: tuple[str, ...]
  percent: bool = False
  labels: tuple[str, ...] = ()  # With labels the axis is logarithmic.


PANELS = (
  Panel("total loss", ("loss",)),
  Panel("masked-LM loss (nats)", ("masked_lm_loss",)),
  Panel("sentence loss (nats)", ("sentence_order_loss", "next_sentence_loss")),
  Panel("learning rate", ("learning_rate",)),
  Panel(
    "gradient, weight and update norm",
    ("gradient_norm", "weight_norm", "update_norm"),
    labels=("gradient", "weights", "update"),
  ),
  Panel("masked-LM accuracy", ("masked_lm_accuracy",), percent=True),
  Panel("sentence accuracy", ("sentence_order_accuracy", "next_sentence_accuracy"), percent=True),
  Panel("examples per second", ("examples_per_second",)),
  Panel("share of the time that made updates (goodput)", ("goodput",), percent=True),
)


def draw_curves(
  records: Sequence[Mapping[str, Any]], path: str, *, baselines: Mapping[str, float] | None = None
) -> None:
  """Draws reports, as in metrics.jsonl, into a PNG, written atomically.

  Args:
    baselines: metric → value of a horizontal line, such as the accuracy of the most frequent piece.
  """
  figure = Figure(figsize=(16, 11), dpi=110, layout="constrained", facecolor="white")
  for axes, panel in zip(figure.subplots(3, 3).flat, PANELS, strict=True):
    drawn = _draw_lines(axes, panel, records, baselines or {})
    _decorate(axes, panel, "" if drawn else "not in this run" if records else "no report yet")
  legend = {
    "training batches": Line2D([], [], color=_COLORS["train"], linewidth=2),
    "held-out documents": Line2D([], [], color=_COLORS["eval"], linewidth=2, marker="o", markersize=4),
  }
  if baselines:
    legend["without a model"] = Line2D([], [], color=_BASELINE, linestyle="--")
  figure.legend(legend.values(), legend, loc="outside lower center", ncols=3, frameon=False, fontsize=11)
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
    for split in _COLORS:
      points = [(r["step"], r[key]) for r in records if r["split"] == split and r.get(key) is not None]
      if not points:
        continue
      drawn = True
      color = _SERIES_COLORS[number] if panel.labels else _COLORS[split]
      marker = "o" if split == "eval" or len(points) == 1 else None
      axes.plot(*zip(*points, strict=True), color=color, linewidth=1.6, marker=marker, markersize=4)
      if panel.labels:  # In the middle: at its end an update norm falls to 0.
        x, y = points[len(points) // 2]
        axes.text(x, y, panel.labels[number], ha="center", va="bottom", color=color, fontsize=9)
      if key in baselines:
        axes.axhline(baselines[key], color=_BASELINE, linestyle="--", linewidth=1.2)
  return drawn


def _decorate(axes: Axes, panel: Panel, missing: str) -> None:
  axes.set_title(panel.title, fontsize=11, loc="left")
  axes.set_xlabel("step", fontsize=10, color="#444444")
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="#e6e6e6", linewidth=0.8)
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  if missing:
    axes.text(0.5, 0.5, missing, ha="center", va="center", transform=axes.transAxes, color=_BASELINE)
  elif panel.percent:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
  elif panel.labels:
    axes.set_yscale("log")
