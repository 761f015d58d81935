"""A confusion matrix, and true against predicted values, as PNG files."""

from collections.abc import Sequence
import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
import numpy as np
from sklearn import metrics

from albert_tf import files

_MOST_NUMBERS = 20  # Classes up to which each cell has its share written in.


def confusion_matrix(
  path: str, labels: np.ndarray, predictions: np.ndarray, *, names: Sequence[str], title: str
) -> None:
  """Draws the shares of each true class, and how often it occurs.

  Args:
    path: of the PNG file.
    labels, predictions: int `[n]`.
    names: of the classes.
    title: above the plot.
  """
  count = len(names)
  shares = metrics.confusion_matrix(labels, predictions, labels=range(count), normalize="true")
  shown = [name if len(name) <= 20 else f"{name[:19]}…" for name in names]
  side = min(max(3.2, 0.75 * count + 1.8), 16.0)
  figure = Figure(figsize=(side + 1.2, side), layout="constrained")
  axes = figure.add_subplot()
  metrics.ConfusionMatrixDisplay(shares, display_labels=shown).plot(
    ax=axes,
    cmap="Blues",
    include_values=count <= _MOST_NUMBERS,
    values_format=".0%",
    xticks_rotation=45 if max(map(len, shown)) > 6 and count > 2 else "horizontal",
    im_kw={"vmin": 0.0, "vmax": 1.0},
  )
  axes.set_yticklabels([f"{name} ({(labels == index).sum():,})" for index, name in enumerate(shown)])
  axes.set(xlabel="predicted", ylabel="true", title=title)
  save_figure(figure, path)


def scatter(path: str, labels: np.ndarray, predictions: np.ndarray, *, title: str) -> None:
  """Draws true against predicted values, with the diagonal; arguments as of `confusion_matrix`."""
  figure = Figure(figsize=(5.4, 5.0), layout="constrained")
  axes = figure.add_subplot()
  metrics.PredictionErrorDisplay(y_true=labels, y_pred=predictions).plot(
    ax=axes, kind="actual_vs_predicted", scatter_kwargs={"s": 9, "alpha": 0.35}
  )
  axes.set(xlabel="predicted", ylabel="true", title=title)
  save_figure(figure, path)


def save_figure(figure: Figure, path: str) -> None:
  """Writes a PNG file, atomically."""
  FigureCanvasAgg(figure)
  buffer = io.BytesIO()
  figure.savefig(buffer, format="png", dpi=120)
  with files.atomic_writer(path) as stream:
    stream.write(buffer.getvalue())
