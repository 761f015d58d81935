"""Tells, before a TPU is rented, whether a pretraining step fits, how long the run takes and what it costs.

It compiles the training step of one core with Google's TPU compiler (libtpu), which needs no TPU:
pip install -e ".[tpu-compile]". With --estimate_only it uses a formula, without the compiler.
It takes the flags of run_pretrain.py for the model and the step, and recipes.
The status is 0 also where the step does not fit, and 2 for a mistake in the flags.

Example:
  python tpu_scripts/compile_for_tpu.py --size=base --topology=v3:16x16 --train_batch_size=4096
  python tpu_scripts/compile_for_tpu.py --flagfile=recipes/albert_xxlarge_v1.flags --topology=v3:16x16
"""

import dataclasses

from absl import flags
import run_pretrain  # noqa: F401  It defines the flags of the recipes.

from albert_tf.cli import commands
from albert_tf.configs import AlbertConfig, ModelChoice
from albert_tf.planning import plan
from albert_tf.planning.chips import Topology, parse_topology
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.tpu_compiler import compile_hlo
from albert_tf.pretraining.settings import StepConfig, TrainingRecords
from albert_tf.records.masking import predictions_of_share
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The flags besides those of the run."""

  topology: str = setting(
    "",
    "Type and grid of chips, such as v3:16x16 or v5p:2x2x1; v5e:2x4 is a v5litepod-8, v5e:1x1 one "
    "chip. An unknown one prints all that are known; GPUs are not among them.",
  )
  usd_per_chip_hour: float | None = setting(
    None,
    "US dollars for a chip and hour, to print the run's cost: chips x likely hours x this price. A "
    "v2-8 to v5p-8 is four chips, a v5litepod-8 or v6e-8 eight. No price is built in.",
    minimum=0,
  )
  estimate_only: bool = setting(
    False,
    "Estimate with a formula, in seconds, without the compiler: on any machine, with no further "
    "package.",
  )
  # A flag of the run: the optimizer's settings would also check its warm-up.
  num_train_steps: int = setting(125_000, "Number of updates.", minimum=1)


commands.define_flags(Command)
_FLAGS_OF_THE_RUN = """
size albert_config_file train_batch_size gradient_accumulation_steps max_seq_length
max_predictions_per_seq masked_lm_prob num_train_steps optimizer mixed_precision remat layer_loop
train_depths
"""
# --help shows only these of the run's flags: a plan does not need the others.
for _name in _FLAGS_OF_THE_RUN.split():
  flags.declare_key_flag(_name)


def _shape(config: AlbertConfig, topology: Topology) -> StepShape:
  """The step of one core.

  --gradient_accumulation_steps=0 takes the fastest micro-batches that fit by formula.
  """
  step = commands.from_flags(StepConfig)
  config.check_train_depths(step.train_depths)
  chooses_micro_batches = step.gradient_accumulation_steps == 0
  if chooses_micro_batches:
    # The largest step; the planner divides it.
    step = dataclasses.replace(step, gradient_accumulation_steps=1)
  # The run's flags have the names of a step's settings.
  shape = commands.from_flags(
    StepShape,
    per_core_batch_size=step.micro_batch_size(topology.num_cores),
    gradient_accumulation_steps=step.gradient_accumulation_steps,
  )
  # A plan has no records; a share of masks means fresh ones.
  records = commands.from_flags(TrainingRecords, input_file="", masking="fresh")
  if records.masked_lm_prob is not None:
    predictions = predictions_of_share(records.masked_lm_prob, shape.max_seq_length)
    shape = dataclasses.replace(shape, max_predictions_per_seq=predictions)
  config.check_length(shape.max_seq_length, "the step")
  if chooses_micro_batches:
    return plan.fastest_micro_batches(config, shape, topology.chip)
  return shape


def main() -> None:
  command = commands.from_flags(Command)
  topology = parse_topology(command.topology)
  config = commands.from_flags(ModelChoice).config()
  shape = _shape(config, topology)
  compiled = None
  if not command.estimate_only:
    print(f"compiling for a core of {topology.name}", flush=True)
    # The formula above needs no TensorFlow, the program of a step does.
    commands.load_tensorflow()
    from albert_tf.planning.lowering import lower_train_step

    program = lower_train_step(config, shape)
    compiled = compile_hlo(program, topology.name)
  report = plan.describe(
    config,
    shape,
    topology,
    compiled=compiled,
    num_train_steps=command.num_train_steps,
    usd_per_chip_hour=command.usd_per_chip_hour,
  )
  print(report)


if __name__ == "__main__":
  commands.run(main)
