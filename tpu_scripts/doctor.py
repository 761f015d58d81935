"""Checks whether this machine can train: packages, GPUs, the TPU, the run directory; prints what to do.

It trains nothing, and does not look at free disk space. GPUs are only
listed. --tpu=local starts the chips, so no run may hold them. The status is 1 if something is to fix.

Example:
  python tpu_scripts/doctor.py --tpu=local --output_dir=gs://bucket/run
"""

from albert_tf.cli import commands, doctor
from albert_tf.runs.settings import DistributionConfig
from albert_tf.settings import Settings, setting


class Command(Settings):
  """What is checked besides the machine."""

  output_dir: str = setting(
    "", "A run directory, local or gs://: a small file is written, read and removed. Default: none."
  )


commands.define_flags(Command)
commands.define_flags(DistributionConfig, without=("mixed_precision", "use_xla"))


def main() -> int:
  command = commands.from_flags(Command)
  return doctor.report(commands.from_flags(DistributionConfig), output_dir=command.output_dir)


if __name__ == "__main__":
  commands.run(main)
