"""curves.png: the whole run on one page, drawn from the records of metrics.jsonl."""

from collections.abc import Mapping, Sequence
import io
import types
from typing import Any, NamedTuple

from albert_tf import files
from albert_tf.runs.metrics_log import Report


class _Curve(NamedTuple):
  """How the reports of a split are drawn."""

  split: str
  color: str
  label: str


_CURVES = (
  _Curve("train", "#2f6fab", "training batches"),
  _Curve("eval", "#d1495b", "held-out documents"),
)
# Title → keys in a report; a run has one of them.
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
_COLUMNS = 3


def draw_curves(
  records: Sequence[Report],
  path: str,
  *,
  panels: Sequence[str] = tuple(_PANELS),
  baselines: Mapping[str, tuple[float, str]] = types.MappingProxyType({}),
) -> None:
  """Draws reports, as in metrics.jsonl, into a PNG, written atomically.

  Args:
    records: the reports.
    path: of the picture.
    panels: titles of `_PANELS`; their number is a multiple of three.
    baselines: title of a panel → height and label of a dashed line.
  """
  # It takes a second to import; the first update does not wait for it.
  from matplotlib.figure import Figure

  num_rows = len(panels) // _COLUMNS
  figure = Figure(figsize=(16, 3.7 * num_rows), dpi=110, layout="constrained", facecolor="white")
  all_axes = figure.subplots(num_rows, _COLUMNS).flat
  for axes, title in zip(all_axes, panels, strict=True):
    _draw_panel(axes, title, records)
    if title in baselines:
      height, label = baselines[title]
      axes.axhline(height, color="#777777", linestyle="--", linewidth=1, label=label)
      axes.legend(frameon=False)
  save_png(figure, path)


def save_png(figure: Any, path: str) -> None:
  """Writes a figure of matplotlib atomically, also into a bucket."""
  image = io.BytesIO()
  figure.savefig(image, format="png")
  files.write_bytes(path, image.getvalue())


def _draw_panel(axes: Any, title: str, records: Sequence[Report]) -> None:
  axes.set_title(title, fontsize=11, loc="left")
  axes.set_xlabel("step", fontsize=10)
  axes.grid(color="#e6e6e6", linewidth=0.8)
  if "accuracy" in title:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
  for key in _PANELS[title]:
    for curve in _CURVES:
      reports = [r for r in records if r["split"] == curve.split and r.get(key) is not None]
      if not reports:
        continue
      # Evaluations are few; a single report would be no line.
      marker = "o" if curve.split == "eval" or len(reports) == 1 else None
      axes.plot(
        [report["step"] for report in reports],
        [report[key] for report in reports],
        color=curve.color,
        label=curve.label,
        marker=marker,
        markersize=4,
      )
      axes.legend(frameon=False)
