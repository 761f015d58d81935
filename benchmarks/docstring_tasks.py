"""Two tasks of real text for small models, from the documentation of installed packages.

- `section`: a section of a docstring, without its heading → which section it is, such as "Returns".
- `package`: the summary of a docstring → the package that it is from.

Every tenth docstring, by its hash, is for evaluation. Each class has equally many rows for training, as far as there
are so many. Prints the number of rows as one JSON line.

Example:
  python benchmarks/docstring_tasks.py --output_dir=tasks
  python tpu_scripts/run_glue.py --task_name=custom --train_file=tasks/section/train.csv \
    --eval_file=tasks/section/eval.csv --init_checkpoint=RUN --output_dir=runs/section --do_train
"""

import ast
from collections.abc import Mapping
import csv
import importlib.util
import os
import pathlib
import re
from typing import Any
import zlib

from absl import flags
import common

from albert_tf import files
from albert_tf.errors import UserError

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Folder of the tables.", required=True)
_ROWS = flags.DEFINE_integer("rows", 700, "Most rows of a class for training.", lower_bound=1)
_PACKAGES = ("apache_beam", "keras", "matplotlib", "numpy", "scipy", "sklearn", "tensorflow")
_SECTIONS = (
  "Parameters",
  "Returns",
  "Raises",
  "See Also",
  "Notes",
  "References",
  "Examples",
  "Attributes",
  "Methods",
)
_HEADING = re.compile(r"\n\n([A-Z][A-Za-z ]+)\n-{3,}\n")
_MOST_WORDS = 60
_FEWEST_WORDS = 4
_EVAL_SHARE = 10  # Every tenth.

Row = tuple[str, str]  # Text, label.


def _measure() -> Mapping[str, Any]:
  rows_of_task: dict[str, dict[str, list[Row]]] = {
    name: {"train": [], "eval": []} for name in ("section", "package")
  }
  for package in _PACKAGES:
    for docstring in sorted(_docstrings(package)):
      split = "train"
      if zlib.crc32(docstring.encode()) % _EVAL_SHARE == 0:
        split = "eval"
      summary, *sections = _HEADING.split(docstring)
      _add(rows_of_task["package"][split], summary, package)
      for heading, body in zip(sections[::2], sections[1::2], strict=True):
        if heading in _SECTIONS:
          _add(rows_of_task["section"][split], body, heading)

  counts: dict[str, dict[str, int]] = {}
  for task, splits in rows_of_task.items():
    counts[task] = {}
    for split, rows in splits.items():
      limit = _ROWS.value
      if split == "eval":
        limit = _ROWS.value // _EVAL_SHARE
      chosen = _limited(rows, limit)
      _write(os.path.join(_OUTPUT_DIR.value, task), split, chosen)
      counts[task][split] = len(chosen)
  return {"rows": counts}


def _docstrings(package: str) -> set[str]:
  """Docstrings of the functions and classes of an installed package, which is read, not imported."""
  spec = importlib.util.find_spec(package)
  # Without it the task would lack a class, and its figures would be of another task.
  if spec is None or not spec.submodule_search_locations:
    raise UserError(
      f"The tasks need the packages {', '.join(_PACKAGES)}. Received: an environment without "
      f"{package}. Run it in the one that `make install` makes."
    )
  found = set()
  for path in pathlib.Path(spec.submodule_search_locations[0]).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
      if isinstance(node, ast.ClassDef | ast.FunctionDef):
        found.add(ast.get_docstring(node) or "")
  return found


def _add(rows: list[Row], text: str, label: str) -> None:
  words = text.split()
  if len(words) >= _FEWEST_WORDS:
    rows.append((" ".join(words[:_MOST_WORDS]), label))


def _limited(rows: list[Row], limit: int) -> list[Row]:
  """At most so many rows of each class, in an order that does not follow the packages."""
  numbers: dict[str, int] = {}
  chosen = []
  for text, label in sorted(set(rows), key=lambda row: zlib.crc32(row[0].encode())):
    numbers[label] = numbers.get(label, 0) + 1
    if numbers[label] <= limit:
      chosen.append((text, label))
  return chosen


def _write(folder: str, split: str, rows: list[Row]) -> None:
  files.makedirs(folder)
  with open(os.path.join(folder, f"{split}.csv"), "w", encoding="utf-8", newline="") as stream:
    writer = csv.writer(stream)
    writer.writerow(("text", "label"))
    writer.writerows(rows)


if __name__ == "__main__":
  common.run(_measure)
