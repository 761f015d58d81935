"""A confusion matrix, and true against predicted values, as PNG files."""

from collections.abc import Sequence
import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
import numpy as np

from albert_tf import files

_COLOR = "#2f6fab"
_MOST_NUMBERS = 20  # Classes up to which each cell has its count written in.


def confusion_matrix(
  path: str, labels: np.ndarray, predictions: np.ndarray, *, names: Sequence[str], title: str
) -> None:
  """Draws counts and, by colour, shares of each true class.

  Args:
    path: of the PNG file.
    labels, predictions: int `[n]`.
    names: of the classes.
    title: above the plot.
  """
  count = len(names)
  counts = np.zeros([count, count], np.int64)  # [true, predicted]
  np.add.at(counts, (labels, predictions), 1)
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  side = min(max(3.2, 0.75 * count + 1.8), 16.0)
  figure = Figure(figsize=(side + 1.2, side), layout="constrained")
  axes = figure.add_subplot()
  image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
  figure.colorbar(image, ax=axes, label="share of the true class")
  if count <= _MOST_NUMBERS:
    for (i, j), number in np.ndenumerate(counts):
      color = "white" if shares[i, j] > 0.55 else "black"
      axes.text(j, i, f"{number:,}\n{shares[i, j]:.0%}", ha="center", va="center", color=color, fontsize=9)
  shown = [name if len(name) <= 20 else f"{name[:19]}…" for name in names]
  long = max(map(len, shown)) > 6 and count > 2
  axes.set_xticks(range(count), shown, rotation=45 if long else 0, ha="right" if long else "center")
  axes.set_yticks(range(count), shown)
  axes.set_xlabel("predicted")
  axes.set_ylabel("true")
  axes.set_title(title, fontsize=11)
  _save(figure, path)


def scatter(path: str, labels: np.ndarray, predictions: np.ndarray, *, title: str) -> None:
  """Draws predicted against true values, with the diagonal.

  Args:
    path: of the PNG file.
    labels, predictions: float `[n]`.
    title: above the plot.
  """
  figure = Figure(figsize=(5.4, 5.0), layout="constrained")
  axes = figure.add_subplot()
  axes.scatter(labels, predictions, s=9, alpha=0.35, color=_COLOR, linewidths=0)
  low, high = min(labels.min(), predictions.min()), max(labels.max(), predictions.max())
  margin = 0.04 * (high - low or 1.0)
  limits = (low - margin, high + margin)
  axes.plot(limits, limits, color="#8a8a8a", linewidth=1, linestyle="--")
  axes.set_xlim(*limits)
  axes.set_ylim(*limits)
  axes.set_aspect("equal")
  axes.set_xlabel("true")
  axes.set_ylabel("predicted")
  axes.set_title(title, fontsize=11)
  _save(figure, path)


def _save(figure: Figure, path: str) -> None:
  FigureCanvasAgg(figure)
  buffer = io.BytesIO()
  figure.savefig(buffer, format="png", dpi=120)
  with files.atomic_writer(path) as stream:
    stream.write(buffer.getvalue())
