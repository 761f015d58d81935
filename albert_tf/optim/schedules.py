"""The learning-rate schedule as a pure function of the update's number."""

import tensorflow as tf

from albert_tf.optim.config import ScheduleConfig


def rate_of_update(t: tf.Tensor | int, config: ScheduleConfig) -> tf.Tensor:
  """The rate η(t) of update number t, counted from 1; float32, of the shape of `t`.

  warm-up, t - s₀ < W:  η₀ (t - s₀) / W, never negative
  decay, continuous:    η_T + (η₀ - η_T) (1 - (t - s₀ - W) / (T - s₀ - W))^a
  decay, original:      η_T + (η₀ - η_T) (1 - t / T)^a

  The update made from k completed steps is number t = k + 1, so the first update is not a no-op and the
  last (t = T) has `end_learning_rate`; the original code does the same at its global step k.

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
