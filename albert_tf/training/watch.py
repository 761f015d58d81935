"""Early words when training goes wrong: non-finite values, plateaus, collapse, settings that clash."""

from collections import deque
from collections.abc import Mapping, Sequence
import math

from albert_tf.errors import UserError
from albert_tf.training.settings import PretrainingSettings

# The ALBERT paper's setting, section 4.1; other batches are compared with it by the square root.
_LAMB_REFERENCE = (0.00176, 4096)
_ADAMW_REFERENCE = (1e-4, 256)  # BERT, arXiv 1810.04805, appendix A.2.
_REFERENCE_WIDTH = 768
_TOO_HIGH, _TOO_LOW = 6.0, 16.0  # Times the rule of thumb; short runs of small models bear several times.
_USUAL_BASELINE = 0.06  # Share of the most frequent piece among the masked ones; English, 30,000 pieces.
_UNIGRAM_SHARE = 0.68  # Entropy of the pieces over log V: 7.0 nats of 10.3 in English with 30,000 pieces.
_GRACE_SECONDS, _CHUNK_SECONDS = 20.0, 10.0  # Cloud machines give 30 s from SIGTERM to the end.


class NonFiniteError(UserError):
  """Training met a value that is not a number; the message names the steps and the last good checkpoint."""


def check_finite(
  metrics: Mapping[str, float], *, first_step: int, last_step: int, last_checkpoint: str | None
) -> None:
  """Stops a run whose losses, norms or weights are no longer numbers.

  Args:
    metrics: the report of the updates `first_step` to `last_step`.
    last_checkpoint: path of the newest checkpoint made before them, or None.

  Raises:
    NonFiniteError: a value is infinite or not a number.
  """
  bad = sorted(key for key, value in metrics.items() if not math.isfinite(value))
  if not bad:
    return
  raise NonFiniteError(
    f"Losses and norms must stay finite. Received: {', '.join(f'{key}={metrics[key]}' for key in bad)} "
    f"between steps {first_step} and {last_step}. {_kept(last_checkpoint)} The same data "
    "would fail the same way: tpu_scripts/replay_step.py shows it. Lower --learning_rate or lengthen "
    "--num_warmup_steps, use --mixed_precision=float32 if it was bfloat16, or leave such updates out "
    "(--on_nonfinite=skip)."
  )


class SkippedUpdates:
  """Names the updates that `--on_nonfinite=skip` left out, and ends a run that makes none any more."""

  # A damaged batch costs one update, a rare overflow two or three; diverged weights cost all.
  MAX_IN_A_ROW = 10

  def __init__(self) -> None:
    self._in_a_row = 0

  def observe(self, first_step: int, left_out: Sequence[float], *, last_checkpoint: str | None) -> list[str]:
    """Takes, for each update from `first_step` on, 1 if it was left out; returns what the person should hear.

    Raises:
      NonFiniteError: more than `MAX_IN_A_ROW` updates in a row were left out, counted from the start of the process.
    """
    steps = [first_step + i for i, flag in enumerate(left_out) if flag]
    for i, flag in enumerate(left_out):
      self._in_a_row = self._in_a_row + 1 if flag else 0
      if self._in_a_row > self.MAX_IN_A_ROW:
        raise NonFiniteError(
          f"At most {self.MAX_IN_A_ROW} updates in a row may be left out. Received: {self._in_a_row} up to step "
          f"{first_step + i} whose loss or gradient is not finite: it is the weights, not a batch. "
          f"{_kept(last_checkpoint)} Start from an earlier checkpoint with a lower --learning_rate or with "
          "--mixed_precision=float32."
        )
    if not steps:
      return []
    shown = ", ".join(f"{step:,}" for step in steps[:8]) + (", …" if len(steps) > 8 else "")
    word = (
      f"left out {len(steps)} update(s) whose loss or gradient is not finite: step {shown}. "
      f"tpu_scripts/replay_step.py --step={steps[0]} shows the batch."
    )
    return [word]


def _kept(last_checkpoint: str | None) -> str:
  if last_checkpoint:
    return f"The last good checkpoint is {last_checkpoint}; running the same command again continues from it."
  return "No checkpoint had been made yet."


class TrainingWatch:
  """Reads the training reports and says when a run is stuck or has collapsed."""

  _BELOW_ENTROPY = 0.25  # A loss this far below the entropy has left the plateau, nats.
  _PROGRESS = 0.1  # A fall of the loss over the window that counts as progress, nats.
  _LEARNED = 1.5  # Times the baseline's accuracy at which the context is used.
  _COLLAPSE = 0.5  # Share of the best accuracy below which it has collapsed.

  def __init__(self, settings: PretrainingSettings):
    self._num_warmup_steps = settings.optimizer.num_warmup_steps
    self._window = min(5_000, max(300, settings.num_train_steps // 20))  # Steps that are compared.
    # Masked-LM loss of a model that has learned the frequencies of the pieces and nothing else, nats.
    self._plateau_loss = _UNIGRAM_SHARE * math.log(settings.model.vocab_size)
    self._baseline_accuracy = settings.baselines.get("masked_lm_accuracy") or _USUAL_BASELINE
    self._recent: deque[tuple[int, float, float]] = deque()  # Step, loss, accuracy.
    self._next_plateau_word = 0
    self._best_accuracy = 0.0
    self._collapsed = False
    self._spoke_of_chunks = False

  def observe(self, step: int, metrics: Mapping[str, float]) -> list[str]:
    """Takes the training report after `step` updates; returns what the person should hear, mostly nothing."""
    words = []
    if "masked_lm_loss" in metrics:
      words += self._plateau(step, metrics["masked_lm_loss"], metrics.get("masked_lm_accuracy", 0.0))
    if "masked_lm_accuracy" in metrics:
      words += self._collapse(step, metrics["masked_lm_accuracy"])
    return words

  def chunk_time(self, num_steps: int, seconds: float) -> list[str]:
    """Says once that returns to the host are too rare to save on SIGTERM."""
    if seconds <= _GRACE_SECONDS or num_steps == 1 or self._spoke_of_chunks:
      return []
    self._spoke_of_chunks = True
    better = max(1, int(num_steps * _CHUNK_SECONDS / seconds))
    word = (
      f"{num_steps:,} updates took {seconds:.0f} s. SIGTERM is only noticed between returns to the host, and a "
      f"preempted machine has about 30 s: --iterations_per_loop={better} would save in time."
    )
    return [word]

  def _plateau(self, step: int, loss: float, accuracy: float) -> list[str]:
    if step <= self._num_warmup_steps:
      return []
    window = self._window
    self._recent.append((step, loss, accuracy))
    while self._recent and self._recent[0][0] < step - window:
      self._recent.popleft()
    enough = self._recent[-1][0] - self._recent[0][0] >= 0.8 * window and len(self._recent) >= 4
    if not enough or step < self._next_plateau_word:
      return []
    _, losses, accuracies = zip(*self._recent, strict=True)
    half = len(losses) // 2
    early, late = sum(losses[:half]) / half, sum(losses[half:]) / (len(losses) - half)
    learned = sum(accuracies) / len(accuracies) > self._LEARNED * self._baseline_accuracy
    left = late < self._plateau_loss - self._BELOW_ENTROPY
    if learned or left or early - late > self._PROGRESS:
      return []
    self._next_plateau_word = 2 * step  # Speak again only if it lasts twice as long.
    return [_plateau_message(step, window, late, self._plateau_loss)]

  def _collapse(self, step: int, accuracy: float) -> list[str]:
    self._best_accuracy = max(self._best_accuracy, accuracy)
    low = accuracy < self._COLLAPSE * self._best_accuracy and self._best_accuracy > 0.1
    if low == self._collapsed:
      return []
    self._collapsed = low
    if not low:
      return [f"Masked-LM accuracy has recovered to {accuracy:.1%} at step {step:,}."]
    word = (
      f"Masked-LM accuracy has collapsed to {accuracy:.1%} at step {step:,}; its best was "
      f"{self._best_accuracy:.1%}. Usual causes: a learning rate too high for the batch, bfloat16 where "
      "float32 would hold, damaged or very short records. See docs/training_trouble.md, 'The accuracy "
      "collapses'."
    )
    return [word]


def _plateau_message(step: int, window: int, loss: float, plateau_loss: float) -> str:
  """What to say about a masked-LM loss that stays where only token frequencies are known."""
  return (
    f"The masked-LM loss has stayed near {loss:.2f} for {window:,} steps (now step {step:,}). A model that "
    f"knows only how frequent each token is has {plateau_loss:.2f}: nothing is learned from the context yet. "
    "Usual causes: --learning_rate too high for the batch (try a third of it, or "
    "--scale_learning_rate=sqrt), a warm-up too short, too few examples a batch, records of another "
    "vocabulary. Small models may need some hundred steps more. See docs/training_trouble.md, 'The loss is "
    "stuck near 7'."
  )


def schedule_warnings(settings: PretrainingSettings) -> list[str]:
  """What does not fit together among rate, batch and warm-up: a sentence or two for each clash; checked before step 1.

  Narrower models than base bear a rate higher in proportion.
  """
  optimizer, learning_rate = settings.optimizer.name, settings.optimizer.learning_rate
  num_train_steps, num_warmup_steps = settings.num_train_steps, settings.optimizer.num_warmup_steps
  batch_size = settings.step.global_batch_size
  rate, batch = _ADAMW_REFERENCE if optimizer == "adamw" else _LAMB_REFERENCE
  expected = rate * math.sqrt(batch_size / batch) * max(1.0, _REFERENCE_WIDTH / settings.model.hidden_size)
  words = []
  if learning_rate > _TOO_HIGH * expected:
    words.append(
      f"The learning rate {learning_rate:.3g} is {learning_rate / expected:.1f} times what a batch of "
      f"{batch_size} suggests for {optimizer} at this width ({expected:.2g}; {rate:g} at batch {batch}). "
      "Runs with such a rate often never leave the plateau near the unigram entropy. Lower it, or use "
      "--scale_learning_rate=sqrt."
    )
  if learning_rate < expected / _TOO_LOW:
    words.append(
      f"The learning rate {learning_rate:.3g} is {expected / learning_rate:.0f} times smaller than what a "
      f"batch of {batch_size} suggests for {optimizer} ({expected:.2g}). Training will be slow. "
      "Was it scaled twice?"
    )
  share = num_warmup_steps / num_train_steps
  if num_warmup_steps == 0:
    words.append(
      "There is no warm-up: the first updates are made at the full rate, before the moments are settled. "
      f"ALBERT warms up for 2.5% of the run, here {max(1, num_train_steps // 40)} steps."
    )
  elif num_warmup_steps < min(100, num_train_steps / 100):
    words.append(
      f"The warm-up of {num_warmup_steps} steps is {share:.2%} of the run. ALBERT's is 2.5%, here "
      f"{max(1, num_train_steps // 40)} steps; with fewer, a high rate meets unsettled moments."
    )
  elif share > 0.5:
    words.append(
      f"The warm-up takes {share:.0%} of the run, so the rate is below its peak most of the time. "
      "ALBERT's takes 2.5%. Was --num_train_steps lowered without --num_warmup_steps?"
    )
  return words
