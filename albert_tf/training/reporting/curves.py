"""curves.png: the whole run on one page, drawn from the records of metrics.jsonl."""

from collections.abc import Mapping, Sequence
import io
import itertools
from typing import Any

from albert_tf import files

_SPLITS = {"train": ("#2f6fab", "training batches"), "eval": ("#d1495b", "held-out documents")}
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


def draw_curves(
  records: Sequence[Mapping[str, Any]], path: str, *, panels: Sequence[str] = tuple(_PANELS)
) -> None:
  """Draws reports, as in metrics.jsonl, into a PNG, written atomically; `panels` are titles, a multiple of three."""
  from matplotlib.figure import Figure  # It takes a second to import; the first update does not wait for it.

  rows = len(panels) // 3
  figure = Figure(figsize=(16, 3.7 * rows), dpi=110, layout="constrained", facecolor="white")
  for axes, title in zip(figure.subplots(rows, 3).flat, panels, strict=True):
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel("step", fontsize=10)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    if "accuracy" in title:
      axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    for key, (split, (color, label)) in itertools.product(_PANELS[title], _SPLITS.items()):
      points = [(r["step"], r[key]) for r in records if r["split"] == split and r.get(key) is not None]
      if points:
        marker = "o" if split == "eval" or len(points) == 1 else None
        axes.plot(*zip(*points, strict=True), color=color, label=label, marker=marker, markersize=4)
        axes.legend(frameon=False)
  image = io.BytesIO()
  figure.savefig(image, format="png")
  with files.atomic_writer(path, "wb") as stream:
    stream.write(image.getvalue())
