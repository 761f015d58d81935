"""Warnings when training goes wrong: non-finite values, a plateau, settings that clash."""

from collections.abc import Iterator, Mapping
import math
from typing import Any

from albert_tf.errors import UserError
from albert_tf.records import find_manifests
from albert_tf.training.settings import PretrainingSettings

# Rate and batch of ALBERT, section 4.1, and of BERT (arXiv 1810.04805, appendix A.2); scaled by the square root.
_REFERENCES = {"lamb": (0.00176, 4096), "tfa_lamb": (0.00176, 4096), "adamw": (1e-4, 256)}
_REFERENCE_WIDTH = 768
_TOO_HIGH, _TOO_LOW = 7.0, 16.0  # Factors of the scaled rate; the demo's model is best at 6.4.
_USES_CONTEXT = 0.09  # Accuracy; the most frequent of 30,000 English tokens is 6% of the masked tokens.
_UNIGRAM_SHARE = 0.68  # Entropy of tokens over log V: 7.0 of 10.3 nats for 30,000 English tokens.


class NonFiniteError(UserError):
  """Training met a non-finite value; the message names the steps and the last good checkpoint."""


def check_finite(
  metrics: Mapping[str, float], *, first_step: int, last_step: int, last_checkpoint: str | None
) -> None:
  """Raises `NonFiniteError` if metrics of updates `first_step` to `last_step` are not finite."""
  bad = sorted(key for key, value in metrics.items() if not math.isfinite(value))
  if not bad:
    return
  good = (
    f"The last good checkpoint is {last_checkpoint}."
    if last_checkpoint
    else "No checkpoint had been made yet."
  )
  raise NonFiniteError(
    f"Losses and norms must stay finite. Received: {', '.join(f'{key}={metrics[key]}' for key in bad)} "
    f"between steps {first_step} and {last_step}. {good} The same command would "
    "fail the same way: lower --learning_rate, lengthen --num_warmup_steps, or use --mixed_precision=float32 if "
    "it was bfloat16."
  )


class TrainingWatch:
  """Warns when a run is stuck."""

  def __init__(self, settings: PretrainingSettings):
    # Masked-LM loss in nats of a model that knows only the frequencies of tokens.
    self._entropy = _UNIGRAM_SHARE * math.log(settings.model.vocab_size)
    grace = min(5_000, max(300, settings.num_train_steps // 20))
    self._next_warning = settings.optimizer.num_warmup_steps + grace

  def observe(self, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
    """Takes the training report after `step` updates; yields warnings, mostly none."""
    loss, accuracy = metrics["masked_lm_loss"], metrics["masked_lm_accuracy"]
    if step >= self._next_warning and loss > self._entropy - 0.25 and accuracy < _USES_CONTEXT:
      self._next_warning = 2 * step  # Warn again only if it lasts twice as long.
      yield (
        f"The masked-LM loss is {loss:.2f} at step {step:,}. A model that knows only how frequent each token is has "
        f"{self._entropy:.2f}: nothing is learned from the context yet. Try a third of --learning_rate or "
        "--scale_learning_rate=sqrt; see docs/training_trouble.md, 'The loss is stuck near 7'."
      )


def not_learned(evaluation: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
  """Warnings about tasks that a run has not learned by its last held-out evaluation.

  A sentence task is at chance within two binomial standard errors of 50 %. Masked LM is on its plateau if it is no
  better than the most frequent token.

  Args:
    evaluation: metrics by the names of metrics.jsonl.
    settings: settings of the run, as in run.json.
  """
  manifests = find_manifests(settings["eval_input_files"]).values()
  count = settings["max_eval_steps"] * settings["eval_batch_size"]
  count = min([count, *([sum(each.num_records("eval") for each in manifests)] if manifests else [])])
  bases = [each.baseline for each in manifests if each.baseline]
  frequent = bases[0].eval_share or bases[0].train_share if bases else _USES_CONTEXT
  found, error = [], 1 / math.sqrt(max(count, 1))
  for task in ("sentence_order", "next_sentence"):
    if (accuracy := evaluation.get(f"{task}_accuracy")) is not None and accuracy <= 0.5 + error:
      found.append(
        f"{task.replace('_', ' ')} is at chance: {accuracy:.1%} of {count:,}, chance 50 ± {error:.1%}"
      )
  if (accuracy := evaluation["masked_lm_accuracy"]) <= frequent:
    found.append(
      f"masked LM is on its plateau: {accuracy:.1%}, with the most frequent token alone {frequent:.1%}"
    )
  advice = "Make more updates, change --learning_rate by a factor of 3, or make records of longer rows"
  return [f"{words}. {advice} (docs/training_trouble.md)." for words in found]


def schedule_warnings(settings: PretrainingSettings) -> list[str]:
  """Warnings about rate, batch and warm-up that do not fit together, before step 1.

  Models narrower than base bear a proportionally higher rate.
  """
  optimizer, batch_size = settings.optimizer, settings.step.global_batch_size
  rate, batch = _REFERENCES[optimizer.name]
  width = max(1.0, _REFERENCE_WIDTH / settings.model.hidden_size)
  ratio = optimizer.learning_rate / (rate * math.sqrt(batch_size / batch) * width)
  found = []
  if ratio > _TOO_HIGH or ratio < 1 / _TOO_LOW:
    found.append(
      f"The learning rate {optimizer.learning_rate:.3g} is {ratio:.2g} times what a batch of {batch_size} suggests for "
      f"{optimizer.name} at this width (the paper's: {rate:g} at batch {batch}). Far above, a run often never leaves "
      "the plateau near the unigram entropy; far below, it is slow. --scale_learning_rate=sqrt fits the paper's rate "
      "to the batch."
    )
  share, usual = optimizer.num_warmup_steps / settings.num_train_steps, max(1, settings.num_train_steps // 40)
  if optimizer.num_warmup_steps < min(100, settings.num_train_steps / 100) or share > 0.5:
    found.append(
      f"The warm-up of {optimizer.num_warmup_steps} steps is {share:.2%} of the run. ALBERT's is 2.5%, {usual} "
      "steps of this run. A short warm-up is unstable at a high rate; a long one leaves little time at the peak."
    )
  return found
