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
import collections
from collections.abc import Mapping
import csv
import importlib.util
import os
import pathlib
from typing import Any
import zlib

from absl import flags
import measuring
import texts

from albert_tf import files
from albert_tf.errors import UserError

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Folder of the tables.", required=True)
_ROWS = flags.DEFINE_integer("rows", 700, "Most rows of a class for training.", lower_bound=1)
_PACKAGES = ("apache_beam", "keras", "matplotlib", "numpy", "scipy", "sklearn", "tensorflow")
_SECTIONS = ("Parameters", *texts.NUMPY_SECTIONS)
_MOST_WORDS = 60
_FEWEST_WORDS = 4
_EVAL_SHARE = 10  # Every tenth docstring.

Row = tuple[str, str]  # Text, label.


def _measure() -> Mapping[str, Any]:
  # Task → split → rows.
  tasks: dict[str, dict[str, list[Row]]] = {
    "section": {"train": [], "eval": []},
    "package": {"train": [], "eval": []},
  }
  for package in _PACKAGES:
    # Sorted: the order of a set is another one in each process.
    for docstring in sorted(_docstrings(package)):
      split = _split_of(docstring)
      # The pattern has one group, so headings and bodies alternate.
      summary, *sections = texts.NUMPY_HEADING.split(docstring)
      headings = sections[::2]
      bodies = sections[1::2]
      _add(tasks["package"][split], summary, package)
      for heading, body in zip(headings, bodies, strict=True):
        if heading in _SECTIONS:
          _add(tasks["section"][split], body, heading)

  counts: dict[str, dict[str, int]] = {}
  limits = {"train": _ROWS.value, "eval": _ROWS.value // _EVAL_SHARE}
  for task, splits in tasks.items():
    counts[task] = {}
    for split, rows in splits.items():
      balanced = _balanced(rows, limits[split])
      _write(os.path.join(_OUTPUT_DIR.value, task), split, balanced)
      counts[task][split] = len(balanced)
  return {"rows": counts}


def _split_of(docstring: str) -> str:
  """By a hash: all rows of a docstring are in one split, in every environment in the same."""
  is_eval = zlib.crc32(docstring.encode()) % _EVAL_SHARE == 0
  return "eval" if is_eval else "train"


def _docstrings(package: str) -> set[str]:
  """Docstrings of the functions and classes of an installed package, which is read, not imported."""
  spec = importlib.util.find_spec(package)
  # Without it the task would lack a class, and its figures would be of another task.
  if spec is None or not spec.submodule_search_locations:
    raise UserError(
      f"The tasks need the packages {', '.join(_PACKAGES)}. Received: an environment without "
      f"{package}. Run it in the one that `make install` makes."
    )
  docstrings = set()
  folder = next(iter(spec.submodule_search_locations))
  for path in pathlib.Path(folder).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
      if isinstance(node, ast.ClassDef | ast.FunctionDef):
        docstrings.add(ast.get_docstring(node) or "")
  return docstrings


def _add(rows: list[Row], text: str, label: str) -> None:
  words = text.split()
  if len(words) >= _FEWEST_WORDS:
    rows.append((" ".join(words[:_MOST_WORDS]), label))


def _balanced(rows: list[Row], limit: int) -> list[Row]:
  """At most so many rows of each class, in an order that does not follow the packages."""
  num_rows: collections.Counter[str] = collections.Counter()
  balanced = []
  for text, label in sorted(set(rows), key=_order_of):
    num_rows[label] += 1
    if num_rows[label] <= limit:
      balanced.append((text, label))
  return balanced


def _order_of(row: Row) -> tuple[int, str]:
  """By a hash of the text. A text of two packages has two rows: its label decides their order."""
  text, label = row
  return zlib.crc32(text.encode()), label


def _write(folder: str, split: str, rows: list[Row]) -> None:
  files.makedirs(folder)
  with open(os.path.join(folder, f"{split}.csv"), "w", encoding="utf-8", newline="") as stream:
    writer = csv.writer(stream)
    writer.writerow(("text", "label"))
    writer.writerows(rows)


if __name__ == "__main__":
  measuring.run(_measure)
