"""curves.png: the whole run on one page, drawn from the records of metrics.jsonl."""

from collections.abc import Mapping, Sequence
import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from albert_tf import files

_COLORS = {"train": "#2f6fab", "eval": "#d1495b"}
# Title → keys in a report, of which a run has one.
_PANELS = {
  "masked-LM loss (nats)": ("masked_lm_loss",),
  "sentence loss (nats)": ("sentence_order_loss", "next_sentence_loss"),
  "learning rate": ("learning_rate",),
  "masked-LM accuracy": ("masked_lm_accuracy",),
  "sentence accuracy": ("sentence_order_accuracy", "next_sentence_accuracy"),
  "examples per second": ("examples_per_second",),
  "gradient norm": ("gradient_norm",),
  "weight norm": ("weight_norm",),
  "update norm": ("update_norm",),
}


def draw_curves(records: Sequence[Mapping[str, Any]], path: str) -> None:
  """Draws reports, as in metrics.jsonl, into a PNG, written atomically."""
  figure = Figure(figsize=(16, 11), dpi=110, layout="constrained", facecolor="white")
  for axes, (title, keys) in zip(figure.subplots(3, 3).flat, _PANELS.items(), strict=True):
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel("step", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if "accuracy" in title:
      axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    if not any(_draw_line(axes, key, records) for key in keys):
      axes.text(0.5, 0.5, "no report", ha="center", va="center", transform=axes.transAxes, color="#8a8a8a")
  legend = {
    "training batches": Line2D([], [], color=_COLORS["train"], linewidth=2),
    "held-out documents": Line2D([], [], color=_COLORS["eval"], linewidth=2, marker="o", markersize=4),
  }
  figure.legend(legend.values(), legend, loc="outside lower center", ncols=3, frameon=False, fontsize=11)
  image = io.BytesIO()
  figure.savefig(image, format="png")
  with files.atomic_writer(path, "wb") as stream:
    stream.write(image.getvalue())


def _draw_line(axes: Axes, key: str, records: Sequence[Mapping[str, Any]]) -> bool:
  """Draws a line for each split that has the key; returns whether there is any."""
  drawn = False
  for split, color in _COLORS.items():
    points = [(r["step"], r[key]) for r in records if r["split"] == split and r.get(key) is not None]
    if points:
      drawn = True
      marker = "o" if split == "eval" or len(points) == 1 else None
      axes.plot(*zip(*points, strict=True), color=color, linewidth=1.6, marker=marker, markersize=4)
  return drawn
