"""Learning-rate schedules as pure functions of the update's number."""

import dataclasses
import math
from typing import Literal

import tensorflow as tf

from albert_tf.errors import UserError

REFERENCE_BATCH_SIZE = 4096  # ALBERT section 4.1: batch 4096, learning rate 0.00176.

ScheduleName = Literal["continuous", "original"]
ScalingRule = Literal["none", "sqrt", "linear"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
  """Linear warm-up, then polynomial decay.

  Attributes:
    learning_rate: η₀, the peak rate.
    num_train_steps: T, the update at which the rate has fallen to `end_learning_rate`.
    num_warmup_steps: W, updates of linear rise; 0 for none.
    start_warmup_step: s₀, completed steps at which the warm-up begins; the rate is 0 before.
    poly_power: a, the power of the decay; 1 is linear.
    end_learning_rate: the rate at T and after.
    schedule: "continuous" decays from η₀ at the end of the warm-up; "original" counts the decay from
      step 0, as the original release does, so that the rate jumps down to η₀ (1 - (s₀ + W) / T) there.
  """

  learning_rate: float
  num_train_steps: int
  num_warmup_steps: int = 0
  start_warmup_step: int = 0
  poly_power: float = 1.0
  end_learning_rate: float = 0.0
  schedule: ScheduleName = "continuous"

  def __post_init__(self) -> None:
    if not self.learning_rate > 0.0 or math.isinf(self.learning_rate):
      raise UserError(
        f"learning_rate must be positive. Received: {self.learning_rate}. ALBERT uses 0.00176 at batch 4096."
      )
    if self.num_train_steps < 1:
      raise UserError(
        f"num_train_steps must be at least 1. Received: {self.num_train_steps}. Choose a longer run."
      )
    if self.num_warmup_steps < 0 or self.start_warmup_step < 0:
      raise UserError(
        "num_warmup_steps and start_warmup_step must not be negative. "
        f"Received: num_warmup_steps={self.num_warmup_steps}, start_warmup_step={self.start_warmup_step}. "
        "Use 0 for none."
      )
    if self.start_warmup_step + self.num_warmup_steps > self.num_train_steps:
      raise UserError(
        "The warm-up must end within the run. Received: "
        f"start_warmup_step={self.start_warmup_step}, num_warmup_steps={self.num_warmup_steps}, "
        f"num_train_steps={self.num_train_steps}. Shorten the warm-up (ALBERT warms up for 2.5% of the run)."
      )
    if not self.poly_power > 0.0:
      raise UserError(f"poly_power must be positive. Received: {self.poly_power}. ALBERT uses 1.0 (linear).")
    if not 0.0 <= self.end_learning_rate <= self.learning_rate:
      raise UserError(
        "end_learning_rate must lie between 0 and learning_rate. "
        f"Received: end_learning_rate={self.end_learning_rate}, learning_rate={self.learning_rate}. "
        "Use 0 to decay fully."
      )
    if self.schedule not in ("continuous", "original"):
      raise UserError(
        f"schedule must be continuous or original. Received: {self.schedule!r}. Choose one of the two."
      )


def rate_of_update(t: tf.Tensor | int, config: ScheduleConfig) -> tf.Tensor:
  """The rate η(t) of update number t, counted from 1.

  warm-up, t - s₀ < W:  η₀ (t - s₀) / W, never negative
  decay, continuous:    η_T + (η₀ - η_T) (1 - (t - s₀ - W) / (T - s₀ - W))^a
  decay, original:      η_T + (η₀ - η_T) (1 - t / T)^a

  The update made from k completed steps is number t = k + 1, so the first update is not a no-op and the
  last (t = T) has `end_learning_rate`; the original code does the same at its global step k.

  Args:
    t: number of the update, a scalar or any shape, integer or float.
    config: the schedule.

  Returns:
    η(t), float32, the shape of `t`.

  Reference: ALBERT, arXiv 1909.11942, section 4.1.
  """
  c = config
  t = tf.cast(t, tf.float32)
  since_start = t - float(c.start_warmup_step)
  decay_start = c.start_warmup_step + c.num_warmup_steps if c.schedule == "continuous" else 0
  decay_steps = max(c.num_train_steps - decay_start, 1)
  fraction = tf.clip_by_value((t - float(decay_start)) / float(decay_steps), 0.0, 1.0)
  remaining = 1.0 - fraction
  if c.poly_power != 1.0:
    remaining = tf.pow(remaining, c.poly_power)
  decayed = c.end_learning_rate + (c.learning_rate - c.end_learning_rate) * remaining
  if c.num_warmup_steps == 0:
    return tf.where(since_start > 0.0, decayed, tf.zeros_like(decayed))
  warmup = c.learning_rate * tf.maximum(since_start, 0.0) / float(c.num_warmup_steps)
  return tf.where(since_start < float(c.num_warmup_steps), warmup, decayed)


def rate_after_steps(completed_steps: tf.Tensor | int, config: ScheduleConfig) -> tf.Tensor:
  """The rate of the update made after `completed_steps` updates: η(completed_steps + 1)."""
  return rate_of_update(tf.cast(completed_steps, tf.float32) + 1.0, config)


def scale_learning_rate(
  learning_rate: float,
  batch_size: int,
  *,
  rule: ScalingRule,
  reference_batch_size: int = REFERENCE_BATCH_SIZE,
) -> float:
  """Fits a rate chosen for `reference_batch_size` to another batch.

  none: η;  sqrt: η √(B / B₀);  linear: η B / B₀

  Args:
    learning_rate: η, the rate at the reference batch.
    batch_size: B, the global batch, all replicas and micro-batches.
    rule: "sqrt" suits LAMB (arXiv 1904.00962, section 4.3), "linear" suits SGD, "none" leaves η.
    reference_batch_size: B₀.

  Returns:
    The scaled rate.

  Raises:
    UserError: a batch below 1 or an unknown rule.

  Example:
    >>> round(scale_learning_rate(0.00176, 1024, rule="sqrt"), 8)
    0.00088
  """
  if batch_size < 1 or reference_batch_size < 1:
    raise UserError(
      f"Batch sizes must be at least 1. Received: batch_size={batch_size}, "
      f"reference_batch_size={reference_batch_size}. Give the global batch."
    )
  if rule == "none":
    return learning_rate
  if rule == "sqrt":
    return learning_rate * math.sqrt(batch_size / reference_batch_size)
  if rule == "linear":
    return learning_rate * batch_size / reference_batch_size
  raise UserError(
    f"scale_learning_rate must be none, sqrt or linear. Received: {rule!r}. LAMB users choose sqrt."
  )
