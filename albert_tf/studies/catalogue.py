"""Every study by name, as catalogue.toml lists them: tables and figures of the ALBERT paper, and a study of its recipe.

`plan.py` makes the commands of a study from this data, and `report.py` its table.
"""

from collections.abc import Mapping, Sequence
import pathlib
import tomllib
from typing import Any, NamedTuple

SCALES = ("laptop", "paper")


class Arm(NamedTuple):
  """One row of a study's table."""

  # For directories and --arms.
  name: str
  # In the table.
  title: str
  # The fields in which its model differs from the study's, or its size.
  model: Mapping[str, Any] = {}
  # On a laptop; none: `model`.
  laptop_model: Mapping[str, Any] = {}
  # Other flags of run_pretrain.py.
  flags: str = ""
  # On a laptop; "": `flags`.
  laptop_flags: str = ""
  # In the table of a laptop; "": `title`.
  laptop_title: str = ""
  scales: Sequence[str] = SCALES
  # Records: sop, nsp, ordered; half: sop of the first half of the text files.
  data: str = "sop"
  # Name of the arm that gives the initial weights, of the same seed.
  after: str = ""
  # Heading → the paper's number.
  paper: Mapping[str, float | str] = {}
  # A common start has other numbers than what is compared, and would set the scale.
  in_picture: bool = True

  def model_at(self, scale: str) -> Mapping[str, Any]:
    """The fields of its model at a scale, or its size."""
    if scale == "laptop" and self.laptop_model:
      return self.laptop_model
    return self.model

  def flags_at(self, scale: str) -> list[str]:
    """The flags of run_pretrain.py at a scale."""
    if scale == "laptop" and self.laptop_flags:
      return self.laptop_flags.split()
    return self.flags.split()

  def title_at(self, scale: str) -> str:
    """The title in the table of a scale."""
    if scale == "laptop" and self.laptop_title:
      return self.laptop_title
    return self.title


class Study(NamedTuple):
  """A table or figure of the paper, or a study of this project."""

  # For --study.
  name: str
  # Of the table.
  title: str
  # Table or figure of the paper; "": none.
  paper: str
  # One sentence.
  question: str
  # In the order of the table.
  arms: Sequence[Arm]
  # Metrics of the table, in order; see `report`.
  columns: Sequence[str] = (
    "parameters",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "sentence_accuracy",
  )
  # Panels of the picture: (split, metric).
  curves: Sequence[tuple[str, str]] = (("eval", "masked_lm_loss"),)
  # The picture's x axis: step, or hours, those of the table.
  curves_over: str = "step"
  # evaluate.py measures every trained arm on the held-out documents of these records.
  probes: Sequence[str] = ()
  # The held-out set of all arms; "": each arm's own.
  eval_data: str = ""
  # Compare input and output of every layer (figure 1).
  layers: bool = False
  # Default of --seeds on a laptop; at the paper's scale it is 1.
  laptop_seeds: Sequence[int] = (1, 2, 3)

  def arms_at(self, scale: str) -> list[Arm]:
    """The arms that run at a scale."""
    return [arm for arm in self.arms if scale in arm.scales]


def _read_catalogue() -> dict[str, Study]:
  studies = {}
  path = pathlib.Path(__file__).with_name("catalogue.toml")
  for name, study in tomllib.loads(path.read_text(encoding="utf-8")).items():
    arms = [Arm(**arm) for arm in study.pop("arms")]
    studies[name] = Study(name, arms=arms, **study)
  return studies


STUDIES = _read_catalogue()
