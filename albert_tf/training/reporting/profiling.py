"""`--profile_steps`: a trace of some updates for TensorBoard's profile tab."""

from collections.abc import Callable, Iterator
import contextlib

import tensorflow as tf

from albert_tf.errors import UserError


def parse_profile_steps(text: str) -> tuple[int, int] | None:
  """First and last update of a trace, both included, from "100,110"; None for an empty text."""
  if not text:
    return None
  try:
    first, last = (int(part) for part in text.split(","))
  except ValueError as error:
    raise UserError(
      "--profile_steps is the first and the last update of a trace. Received: "
      f"--profile_steps={text}. Write, for example, --profile_steps=100,110."
    ) from error
  return first, last


class StepProfiler:
  """Traces the updates of a range, whatever chunks they are made in; the loop ends chunks at its edges.

  Args:
    steps: first and last update; None for no trace.
    directory: the trace goes to `directory/plugins/profile/`.
    say: told where the trace is, or why there is none: a run does not end for want of a trace.
  """

  def __init__(self, steps: tuple[int, int] | None, directory: str, *, say: Callable[[str], None]):
    self._first, self._last = steps or (0, -1)
    self._directory = directory
    self._say = say
    self._running = False

  @contextlib.contextmanager
  def around(self, first_step: int, num_steps: int) -> Iterator[None]:
    """Put it around the updates from `first_step` on."""
    if not self._first <= first_step <= self._last:
      yield
      return
    self._start()
    try:
      with tf.profiler.experimental.Trace("updates", step_num=first_step, _r=1):  # _r: the root of a step.
        yield
    except BaseException:
      self.close()
      raise
    if first_step + num_steps > self._last:
      self.close()

  def _start(self) -> None:
    if self._running:
      return
    try:
      tf.profiler.experimental.start(self._directory)
      self._running = True
    except tf.errors.OpError as error:
      self._last = -1  # Not tried again.
      self._say(f"no trace (--profile_steps): {error.message}")

  def close(self) -> None:
    """Writes what has been traced so far."""
    if not self._running:
      return
    self._running = False
    try:
      tf.profiler.experimental.stop()
      self._say(f"wrote a trace below {self._directory} (--profile_steps); tensorboard --logdir shows it")
    except tf.errors.OpError as error:
      self._say(f"no trace (--profile_steps): {error.message}")
