"""Tells, before a TPU is rented, whether a pretraining step fits, how long the run takes and what it costs.

It compiles the training step of one core with Google's TPU compiler (libtpu), which needs no TPU:
pip install -e ".[tpu-compile]". With --estimate_only it uses a formula, without the compiler.
It takes the flags of run_pretrain.py for the model and the step, and recipes.

Example:
  python tpu_scripts/compile_for_tpu.py --size=base --topology=v3:16x16 --train_batch_size=4096
  python tpu_scripts/compile_for_tpu.py --flagfile=recipes/albert_xxlarge_v1.flags --topology=v3:16x16
"""

from absl import flags
import run_pretrain  # noqa: F401  Defines the run's flags.

from albert_tf.cli import commands
from albert_tf.cli.startup import load_tensorflow
from albert_tf.configs import AlbertConfig, ModelChoice
from albert_tf.planning import plan
from albert_tf.planning.chips import Topology, parse_topology
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.tpu_compiler import CompiledStep, compile_hlo
from albert_tf.pretraining.settings import StepConfig
from albert_tf.settings import Settings, setting

FLAGS = flags.FLAGS


class Command(Settings):
  """The flags besides those of the run."""

  topology: str = setting("", "Type and grid of chips, such as v3:16x16 or v5p:2x2x1.")
  per_core_batch_size: int | None = setting(
    None, "Examples that one core computes at a time; replaces --train_batch_size.", minimum=1
  )
  usd_per_chip_hour: float | None = setting(
    None, "US dollars for a chip and hour, to print the cost of the run.", minimum=0
  )
  estimate_only: bool = setting(
    False, "Estimate with a formula in milliseconds, without the compiler."
  )
  compiler_python: str = setting(
    "", "Python interpreter that has jax and libtpu. Default: this one."
  )


commands.define_flags(Command)
_FLAGS_OF_THE_RUN = (
  "size albert_config_file train_batch_size gradient_accumulation_steps max_seq_length max_predictions_per_seq "
  "num_train_steps optimizer mixed_precision remat layer_loop train_depths"
)
for _name in _FLAGS_OF_THE_RUN.split():
  flags.declare_key_flag(_name)  # So that --help shows them.


def _shape(config: AlbertConfig, topology: Topology, per_core_batch_size: int | None) -> StepShape:
  """The step of one core; --gradient_accumulation_steps=0 takes the fastest micro-batches that fit by formula."""
  chooses_micro_batches = FLAGS.gradient_accumulation_steps == 0
  num_micro_batches = FLAGS.gradient_accumulation_steps
  if chooses_micro_batches:
    num_micro_batches = 1  # The largest step; the planner divides it.
  step = commands.from_flags(StepConfig, gradient_accumulation_steps=num_micro_batches)
  config.check_train_depths(step.train_depths)
  shape = StepShape(
    per_core_batch_size=per_core_batch_size or step.micro_batch_size(topology.num_cores),
    max_seq_length=FLAGS.max_seq_length or StepShape.max_seq_length,
    max_predictions_per_seq=FLAGS.max_predictions_per_seq or StepShape.max_predictions_per_seq,
    gradient_accumulation_steps=num_micro_batches,
    mixed_precision=FLAGS.mixed_precision or StepShape.mixed_precision,
    optimizer=FLAGS.optimizer,
    remat=FLAGS.remat,
    layer_loop=FLAGS.layer_loop,
    train_depths=step.train_depths,
  )
  config.check_length(shape.max_seq_length, "the step")
  if chooses_micro_batches:
    return plan.fastest_micro_batches(config, shape, topology.chip)
  return shape


def _compile(
  config: AlbertConfig, shape: StepShape, topology: Topology, python: str
) -> CompiledStep:
  print(f"compiling for a core of {topology.name}", flush=True)
  load_tensorflow()
  from albert_tf.planning.lowering import lower_train_step

  return compile_hlo(lower_train_step(config, shape), topology.name, python=python)


def main() -> None:
  command = commands.from_flags(Command)
  topology = parse_topology(command.topology)
  config = commands.from_flags(ModelChoice).config()
  shape = _shape(config, topology, command.per_core_batch_size)
  compiled = None
  if not command.estimate_only:
    compiled = _compile(config, shape, topology, command.compiler_python)
  print(
    plan.describe(
      config,
      shape,
      topology,
      compiled=compiled,
      num_train_steps=FLAGS.num_train_steps,
      usd_per_chip_hour=command.usd_per_chip_hour,
    )
  )


if __name__ == "__main__":
  commands.run(main)
