"""Fine-tunes the released ALBERT-base v2 on SST-2, MNLI and MRPC, and compares with what its authors publish.

The command checks that the weights are those released, converts them, and trains each task with the paper's settings
(`recipes/glue/`), five seeds each. MRPC starts from the model of MNLI, as in the paper. The same command continues what
was stopped. docs/proof.md says where the files come from, how long it takes and what to expect.

Example:
  python benchmarks/released_base.py --released=albert_base --data_dir=glue_data --output_dir=released_base
"""

from collections.abc import Mapping
import os
import shlex
from typing import Any, NamedTuple

import numpy as np

from albert_tf import files, json_files
from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.cli import commands
from albert_tf.configs.task import RESULTS_FILE, best_run
from albert_tf.progress import markdown_table
from albert_tf.records.tfrecord import masked_crc32c
from albert_tf.settings import Settings, setting
from tpu_scripts.child_commands import ROOT, run_command

RELEASED_CHECKSUMS = ROOT / "tests/goldens/released_variables_crc32c.tsv"


class Task(NamedTuple):
  """A task of GLUE."""

  name: str
  # Accuracy on its development set in percent: README of google-research/albert, ALBERT-base v2.
  published: float | None
  # The task whose best model this one starts from; "": the released weights.
  after: str = ""


# Nobody who made the model publishes MRPC of its base size: the paper has 90.9 for xxlarge (table 9).
TASKS = (Task("sst-2", 92.9), Task("mnli", 84.6), Task("mrpc", None, after="mnli"))


class Command(Settings):
  """The released files, the data, and where the results go."""

  released: str = setting(
    help="The unpacked release of ALBERT-base v2: model.ckpt-best.*, albert_config.json, 30k-clean.model."
  )
  data_dir: str = setting(help="GLUE, as its download script makes it: SST-2/, MNLI/, MRPC/.")
  output_dir: str = setting(help="Directory for all runs and the table.")
  task_flags: str = setting("", "Additional flags of run_glue.py, such as --seeds=1.")


commands.define_flags(Command)


class Released(NamedTuple):
  """Tensors of the release."""

  num_equal: int  # So many of the checkpoint have the checksums of the release.
  total: int


def released_tensors(variables: Mapping[str, Any]) -> Released:
  """Compares a checkpoint's tensors with the checksums of the release."""
  text = RELEASED_CHECKSUMS.read_text(encoding="utf-8")
  _, *rows = text.splitlines()  # The first line names the columns.
  num_equal = 0
  for row in rows:
    name, *_, checksum = row.split("\t")
    if name not in variables:
      continue
    # TensorFlow stores this form of the checksum, its low byte first.
    stored = masked_crc32c(np.asarray(variables[name]).tobytes())
    if int.from_bytes(stored, "little") == int(checksum, 16):
      num_equal += 1
  return Released(num_equal, len(rows))


def comparison(output_dir: str) -> str:
  """A row for each finished task: median and range of the seeds, and the published figure."""
  rows = [["task", "seeds", "median", "lowest to highest", "published", "median − published"]]
  for task in TASKS:
    path = os.path.join(output_dir, task.name, RESULTS_FILE)
    if not files.exists(path):
      continue
    results = json_files.read(path)
    # A run of one seed has its metrics at the top.
    of_seeds = list(results.get("seeds", {"": results}).values())
    scores = [100 * seed["accuracy"] for seed in of_seeds]
    median = float(np.median(scores))
    published = "–"
    gap = "–"
    if task.published is not None:
      published = f"{task.published:.1f}"
      gap = f"{median - task.published:+.1f}"
    spread = f"{min(scores):.1f} to {max(scores):.1f}"
    rows.append([task.name, str(len(scores)), f"{median:.1f}", spread, published, gap])
  return markdown_table(*rows)


def main() -> None:
  # Commands run in the repository's folder, where relative paths would be others.
  command = commands.from_flags(Command)
  output_dir = os.path.abspath(command.output_dir)
  released = os.path.abspath(command.released)
  data_dir = os.path.abspath(command.data_dir)

  # 1. Are these the released weights?
  tensors = released_tensors(read_checkpoint(released).variables)
  identity = (
    f"{tensors.num_equal} of {tensors.total} tensors have the checksums of the released "
    "ALBERT-base v2."
  )
  if tensors.num_equal < tensors.total:
    identity += " These are other weights: the published figures do not apply to them."
  print(identity)

  # 2. Convert them.
  converted = os.path.join(output_dir, "converted")
  if not files.exists(converted):
    words = ["tpu_scripts/convert_checkpoint.py", f"--input={released}", f"--output={converted}"]
    run_command("[convert]", words)

  # 3. Train each task.
  for task in TASKS:
    start = converted
    if task.after:
      start = best_run(os.path.join(output_dir, task.after))
    words = [
      "tpu_scripts/run_glue.py",
      f"--flagfile=recipes/glue/{task.name}.flags",
      f"--data_dir={data_dir}",
      f"--init_checkpoint={start}",
      f"--output_dir={os.path.join(output_dir, task.name)}",
      "--noexport",
    ]
    run_command(f"[{task.name}]", words + shlex.split(command.task_flags))

  # 4. Compare.
  table = comparison(output_dir)
  heading = "Accuracy on GLUE's development sets, in percent."
  page = f"{identity}\n\n{heading}\n\n{table}\n"
  files.write_text(os.path.join(output_dir, "table.md"), page)
  print(f"\n{page}")


if __name__ == "__main__":
  commands.run(main)
