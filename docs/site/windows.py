"""The picture of a long text's windows, from the functions that training and serving use. `make pictures` calls it."""

import pathlib

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch
import numpy as np

from albert_tf.windows.question_windows import max_context
from albert_tf.windows.text_windows import make_windows

PICTURE = pathlib.Path(__file__).parents[1] / "images/windows.svg"
# SQuAD's settings, and a text that needs a few windows.
TEXT = 800
QUESTION = 14
WINDOW = 384
STRIDE = 128
# The question is drawn wider than it is, so that its letter fits.
QUESTION_WIDTH = 52
GREY = "#cfd8dc"
LIGHT = "#c5cae9"
DARK = "#5c6bc0"
YELLOW = "#ffecb3"


def main() -> None:
  # The same picture is the same file.
  matplotlib.rcParams["svg.hashsalt"] = "albert"
  # Before the text stand [CLS], the question and [SEP].
  windows, _ = make_windows([QUESTION + 2], [TEXT], max_seq_length=WINDOW, doc_stride=STRIDE)
  decides = max_context(windows).numpy()
  figure = Figure(figsize=(4.6, 3.7), layout="constrained", facecolor="white")
  axes = figure.subplots()
  axes.barh(0, TEXT, color=YELLOW, edgecolor="#ffca28")
  axes.text(TEXT / 2, 0, f"the text, {TEXT} tokens", ha="center", va="center")

  pairs = zip(windows.begin.numpy(), windows.length.numpy(), strict=True)
  for number, (begin, length) in enumerate(pairs):
    place = number + 1
    axes.barh(place, QUESTION_WIDTH, left=begin - QUESTION_WIDTH, color=GREY)
    axes.text(begin - QUESTION_WIDTH / 2, place, "Q", ha="center", va="center")
    axes.barh(place, length, left=begin, color=LIGHT)
    # The tokens that no other window shows with more context: one range in each window.
    deciding = np.flatnonzero(decides[number])
    first = deciding[0]
    last = deciding[-1]
    axes.barh(place, last - first + 1, left=begin + first, color=DARK)
    axes.text(
      begin + (first + last + 1) / 2, place, str(place), ha="center", va="center", color="white"
    )

  # The first window is on top; a tick at each window's start.
  axes.invert_yaxis()
  axes.set_yticks([])
  axes.set_xticks(range(0, TEXT + 1, STRIDE))
  axes.set_xlabel(f"token of the text; windows of {WINDOW}, {STRIDE} apart")
  axes.spines[["left", "right", "top"]].set_visible(False)
  legend = [
    Patch(color=GREY, label="Q: the question, in every window"),
    Patch(color=LIGHT, label="read by this window"),
    Patch(color=DARK, label="decided by it: most surroundings on both sides"),
  ]
  figure.legend(handles=legend, loc="outside lower left", frameon=False)
  figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
  main()
