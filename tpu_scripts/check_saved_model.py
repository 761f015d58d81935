"""Checks that an exported model loads and answers without this project's code.

One line a check: layout, the loader of servers in a bare process, its ops, golden outputs,
batches, odd text, warm-up requests, and other versions of TensorFlow.
Exit status 0 when nothing failed, 1 when something did, 2 when there was nothing to check.

Example:
  python tpu_scripts/check_saved_model.py --saved_model E/1 --output_json report.json
"""

from collections.abc import Sequence
import dataclasses
import json
import os
import platform
import sys
from typing import Any

from absl import app, flags, logging

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.startup import load_tensorflow

_SAVED_MODEL = flags.DEFINE_string(
  "saved_model", None, "A version directory, or a folder of versions (the highest is taken).", required=True
)
_OUTPUT_JSON = flags.DEFINE_string("output_json", None, "Where a report of all checks is written.")
_PYTHON = flags.DEFINE_multi_string(
  "python", [], "An interpreter with another version of TensorFlow that the export must run on too."
)
_ALLOW_SKIPPED = flags.DEFINE_bool(
  "allow_skipped", True, "Whether a check that this machine or export does not allow may be left out."
)


def write_report(path: str, results: Sequence[Any]) -> None:
  """Writes what was found, and with which versions, as JSON."""
  from tensorflow import version

  report = {
    "saved_model": _SAVED_MODEL.value,
    "passed": all(result.status != "FAIL" for result in results),
    "versions": {
      "python": platform.python_version(),
      "tensorflow": version.VERSION,
      "platform": platform.platform(),
      "executable": os.path.basename(sys.executable),
    },
    "checks": [dataclasses.asdict(result) for result in results],
  }
  with files.atomic_writer(path, "w") as stream:
    json.dump(report, stream, indent=2)
    stream.write("\n")


def main(argv: Sequence[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
  missing = [python for python in _PYTHON.value if not os.access(python, os.X_OK)]
  if missing:
    raise UserError(f"--python must name an interpreter. Received: {missing[0]}, which cannot be run.")
  logging.set_verbosity(logging.WARNING)
  load_tensorflow()
  from albert_tf.serving import check

  found = check.check_saved_model(
    _SAVED_MODEL.value, pythons=_PYTHON.value, say=lambda line: print(line, flush=True)
  )
  if _OUTPUT_JSON.value:
    write_report(_OUTPUT_JSON.value, found)
  counts = {status: sum(r.status == status for r in found) for status in ("PASS", "FAIL", "SKIP")}
  print(", ".join(f"{count} {status}" for status, count in counts.items()))
  bad = counts["FAIL"] + (0 if _ALLOW_SKIPPED.value else counts["SKIP"])
  return 1 if bad else 0


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
