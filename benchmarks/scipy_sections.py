"""A table of overlapping labels: summaries in SciPy's documentation, and the sections that follow them.

Prints the number of rows as one JSON line. docs/overlapping_labels.md has the figures of a run.

Example:
  python benchmarks/scipy_sections.py --output=sections.csv
  python tpu_scripts/run_glue.py --task_name=custom --problem=multi_label --train_file=sections.csv \
    --label_column=sections --init_checkpoint=RUN --output_dir=runs/sections --do_train
"""

import ast
from collections.abc import Mapping
import csv
import pathlib
from typing import Any

from absl import flags
import measuring
import scipy
import texts

_OUTPUT = flags.DEFINE_string("output", "sections.csv", "The table.")


def _measure() -> Mapping[str, Any]:
  rows: dict[str, list[str]] = {}  # Summary → names of its sections.
  for path in sorted(pathlib.Path(scipy.__file__).parent.rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, ast.ClassDef | ast.FunctionDef):
        # The pattern has one group, so headings and bodies alternate.
        summary, *found = texts.NUMPY_HEADING.split(ast.get_docstring(node) or "")
        if found:
          names = [name for name in found[::2] if name in texts.NUMPY_SECTIONS]
          rows[" ".join(summary.split())] = names
  with open(_OUTPUT.value, "w", newline="", encoding="utf-8") as stream:
    writer = csv.writer(stream)
    writer.writerow(["text", "sections"])
    writer.writerows([text, ",".join(names)] for text, names in rows.items())
  return {"rows": len(rows)}


if __name__ == "__main__":
  measuring.run(_measure)
