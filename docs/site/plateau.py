"""The annotated curve of a run with a plateau: `python docs/site/plateau.py RUN/metrics.jsonl`.

The picture of the guide is of the first stage of `recipes/small12.flags`. The steps below were read off that run.
"""

import pathlib
import sys

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from albert_tf.runs.metrics_log import Report, read_metrics

PICTURE = pathlib.Path(__file__).parents[1] / "images/plateau.svg"
PLATEAU = (500, 3000)
ORDER_BEGINS = 300
BLUE = "#2f6fab"
RED = "#d1495b"
GREY = "#eceff1"


def draw(axes: Axes, reports: list[Report], key: str, title: str) -> None:
  """One quantity over the steps, in training and held out, and the plateau behind it."""
  axes.axvspan(*PLATEAU, color=GREY)
  for split, color, label in (("train", BLUE, "training"), ("eval", RED, "held-out")):
    points = [
      (report["step"], report[key])
      for report in reports
      if report["split"] == split and key in report
    ]
    if points:
      axes.plot(*zip(*points, strict=True), color=color, label=label)
  axes.set_title(title, fontsize=10, loc="left")
  if "accuracy" in key:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
  axes.spines[["right", "top"]].set_visible(False)


def note(axes: Axes, text: str, point: tuple[float, float], place: tuple[float, float]) -> None:
  """A note with an arrow to a point of the curve."""
  axes.annotate(
    text, point, place, arrowprops={"arrowstyle": "->", "color": "#455a64"}, va="center"
  )


def main() -> None:
  # The same picture is the same file.
  matplotlib.rcParams["svg.hashsalt"] = "albert"
  reports = read_metrics(sys.argv[1])
  figure = Figure(figsize=(4.6, 7.2), layout="constrained", facecolor="white")
  accuracy, loss, order, gradient = figure.subplots(4, sharex=True)
  draw(accuracy, reports, "masked_lm_accuracy", "masked-LM accuracy")
  draw(loss, reports, "masked_lm_loss", "masked-LM loss (nats)")
  draw(order, reports, "sentence_order_accuracy", "sentence-order accuracy")
  draw(gradient, reports, "gradient_norm", "gradient norm")
  gradient.set_xlabel("step")
  accuracy.legend(frameon=False, loc="lower right")

  # Where the arrow ends, then where the words stand: step and height.
  note(accuracy, "the plateau", (1750, 0.17), (700, 0.32))
  note(accuracy, "leaves it", (3200, 0.19), (5000, 0.13))
  note(loss, "learns how frequent tokens are", (200, 7.0), (1400, 7.6))
  note(loss, "learns from the context", (4000, 4.87), (5200, 5.7))
  note(order, "sentence order begins", (ORDER_BEGINS, 0.53), (2200, 0.525))
  note(gradient, "rises when masked LM leaves", (3600, 2.5), (4700, 2.05))
  figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
  main()
