"""Whether a study's models fit this machine, by the planner's formula, before the first of them is made."""

from collections.abc import Iterator

from albert_tf.errors import UserError
from albert_tf.planning.chips import CHIPS
from albert_tf.planning.estimate import StepShape, estimate_step
from albert_tf.studies.plan import Plan
from albert_tf.studies.study import Arm, flag_values, model_of

_PROGRAM_BYTES = 1 << 30  # Python, TensorFlow, batches in advance.
# Its constants differ in what a logit keeps alone, which is not what decides.
_CHIP = CHIPS["v3"]


def training_bytes(flags: tuple[str, ...], data_flags: tuple[str, ...], *, vocab_size: int) -> int:
  """Memory of one update in float32 on one device: weights, moments, gradients and what is kept for them."""
  values = flag_values((*data_flags, *flags))
  accumulation = int(values.get("gradient_accumulation_steps", 1))
  shape = StepShape(
    per_core_batch_size=max(1, int(values.get("train_batch_size", 4096)) // accumulation),
    max_seq_length=int(values.get("max_seq_length", 512)),
    max_predictions_per_seq=int(values.get("max_predictions_per_seq", 20)),
    gradient_accumulation_steps=accumulation,
    mixed_precision="float32",
    remat=values.get("remat", "false") in ("true", "1"),
  )
  return _PROGRAM_BYTES + estimate_step(model_of(flags, vocab_size=vocab_size), shape, _CHIP).required_bytes


def check_memory(plan: Plan, available_bytes: int | None) -> None:
  """Refuses a study of which an arm needs more than this machine has; one that names a TPU is left to that.

  Args:
    plan: the study.
    available_bytes: of this machine; None where it is not known, and nothing is refused.

  Raises:
    UserError: with the arms that do not fit, and what each needs.
  """
  if available_bytes is None or flag_values(plan.device_flags).get("tpu"):
    return
  needs = {title: size for title, size in _needs(plan) if size > available_bytes}
  if needs:
    listed = ", ".join(f"{title} {size / 2**30:,.1f} GiB" for title, size in needs.items())
    raise UserError(
      f"Every arm must fit this machine's memory. Received: --scale={plan.scale} on a machine with "
      f"{available_bytes / 2**30:.1f} GiB free, where by the planner these need more: {listed}. Choose arms "
      "with --arms, a machine with --tpu, or smaller batches with --train_flags=--gradient_accumulation_steps=N."
    )


def _needs(plan: Plan) -> Iterator[tuple[str, int]]:
  def needed(arm: Arm, flags: tuple[str, ...]) -> int:
    return training_bytes(flags, plan.data_flags, vocab_size=plan.vocab_size)

  speed = plan.study.speed
  for arm in plan.arms:
    yield arm.name, needed(arm, plan.training_flags(arm))
    if speed is not None:
      timed = (*plan.training_flags(arm, speed.scale), *speed.flags_at(plan.scale))
      yield f"{arm.name} (timed)", needed(arm, timed)
