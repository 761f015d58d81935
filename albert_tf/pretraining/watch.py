"""Warnings when training goes wrong: non-finite values, a plateau, settings that clash."""

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any, NamedTuple

from albert_tf.errors import UserError
from albert_tf.pretraining.settings import PretrainingSettings
from albert_tf.records import Manifest, find_manifests


class _Recipe(NamedTuple):
  """A learning rate that is known to be good, with its batch and the width H of its model."""

  learning_rate: float
  batch_size: int
  hidden_size: int
  source: str


_ALBERT = _Recipe(0.00176, 4096, 768, "the paper's")  # ALBERT, section 4.1.
_BERT = _Recipe(1e-4, 256, 768, "the paper's")  # BERT, arXiv 1810.04805, appendix A.2.
# No paper has one for a shared block. It is the demo's: docs/log.md has what else was tried.
_MUON = _Recipe(0.004, 32, 128, "the demo's")
# With Muon, LAMB updates what is no matrix.
_RECIPES = {"lamb": _ALBERT, "muon": _ALBERT, "tfa_lamb": _ALBERT, "adamw": _BERT}
_BASE_WIDTH = 768
# Bounds of the rate over the recipe's, scaled to batch and width; the demo's model is best at 6.4.
_HIGHEST_RATIO = 7.0
_LOWEST_RATIO = 1 / 16.0

# Accuracy of a model that uses the context; the most frequent of 30,000 English tokens is 6% of
# the masked tokens.
_USES_CONTEXT = 0.09
# Entropy of tokens over log V: 7.0 of 10.3 nats for 30,000 English tokens.
_UNIGRAM_SHARE = 0.68


class NonFiniteError(UserError):
  """Training met a non-finite value; the message names the steps and the last good checkpoint."""


def check_finite(
  metrics: Mapping[str, float], *, first_step: int, last_step: int, last_checkpoint: str | None
) -> None:
  """Raises `NonFiniteError` if metrics of updates `first_step` to `last_step` are not finite."""
  bad = sorted(name for name, value in metrics.items() if not math.isfinite(value))
  if not bad:
    return
  checkpoint = "No checkpoint had been made yet."
  if last_checkpoint is not None:
    checkpoint = f"The last good checkpoint is {last_checkpoint}."
  received = ", ".join(f"{name}={metrics[name]}" for name in bad)
  raise NonFiniteError(
    f"Losses and norms must stay finite. Received: {received} between steps {first_step} and "
    f"{last_step}. {checkpoint} The same command would fail the same way: lower --learning_rate, "
    "lengthen --num_warmup_steps, or use --mixed_precision=float32 if it was bfloat16."
  )


class TrainingWatch:
  """Warns when a run is stuck."""

  def __init__(self, settings: PretrainingSettings):
    # Masked-LM loss in nats of a model that knows only the frequencies of tokens.
    self._entropy = _UNIGRAM_SHARE * math.log(settings.model.vocab_size)
    # A model needs some updates after the warm-up: a twentieth of the run, 300 to 5,000.
    grace = min(5_000, max(300, settings.num_train_steps // 20))
    self._next_warning = settings.optimizer.num_warmup_steps + grace
    # With 2 to 6 layers Muon left the plateau at every rate that was tried, LAMB and AdamW only at
    # low rates, or at twice to four times these with a β₂ of 0.95. With 12 layers Muon needed a low
    # rate for LAMB, which updates the rest.
    self._advice = (
      "Try a third of --learning_rate, --beta_2=0.95, or --optimizer=muon in a new --output_dir"
    )
    if settings.optimizer.name == "muon":
      self._advice = "Try a third of --learning_rate and of --muon_learning_rate"

  def observe(self, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
    """Takes the training report after `step` updates; yields warnings, mostly none."""
    loss = metrics["masked_lm_loss"]
    is_on_plateau = loss > self._entropy - 0.25 and metrics["masked_lm_accuracy"] < _USES_CONTEXT
    if step >= self._next_warning and is_on_plateau:
      self._next_warning = 2 * step  # Warn again only if it lasts twice as long.
      yield (
        f"The masked-LM loss is {loss:.2f} at step {step:,}. A model that knows only how frequent "
        f"each token is has {self._entropy:.2f}: nothing is learned from the context yet. "
        f"{self._advice}; see docs/training_trouble.md, 'The loss is stuck near 7'."
      )


def not_learned(evaluation: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
  """Warnings about tasks that a run has not learned by its last held-out evaluation.

  A sentence task is at chance within two binomial standard errors of 50 %. Masked LM is on its
  plateau if it is no better than the most frequent token.

  Args:
    evaluation: metrics by the names of metrics.jsonl.
    settings: settings of the run, as in run.json.
  """
  manifests = list(find_manifests(settings["eval_input_files"]).values())
  num_examples = settings["max_eval_steps"] * settings["eval_batch_size"]
  if manifests:
    num_examples = min(num_examples, sum(manifest.num_records("eval") for manifest in manifests))

  observations = []
  # Two standard errors of a share near 1/2: 2 · √(1/4 / n).
  error = 1 / math.sqrt(max(num_examples, 1))
  for task in ("sentence_order", "next_sentence"):
    accuracy = evaluation.get(f"{task}_accuracy")
    if accuracy is not None and accuracy <= 0.5 + error:
      name = task.replace("_", " ")
      observations.append(
        f"{name} is at chance: {accuracy:.1%} of {num_examples:,}, chance 50 ± {error:.1%}"
      )
  accuracy = evaluation["masked_lm_accuracy"]
  most_frequent = _most_frequent_share(manifests)
  if accuracy <= most_frequent:
    observations.append(
      f"masked LM is on its plateau: {accuracy:.1%}, with the most frequent token alone "
      f"{most_frequent:.1%}"
    )
  advice = (
    "Make more updates, change --learning_rate by a factor of 3, or make records of longer rows"
  )
  return [f"{observation}. {advice} (docs/training_trouble.md)." for observation in observations]


def _most_frequent_share(manifests: Sequence[Manifest]) -> float:
  """Masked-LM accuracy of always the most frequent token, as the manifests recorded it."""
  for manifest in manifests:
    if manifest.baseline:
      return manifest.baseline.eval_share or manifest.baseline.train_share
  return _USES_CONTEXT


def schedule_warnings(settings: PretrainingSettings) -> list[str]:
  """Warnings about rates, batch and warm-up that do not fit together, before step 1."""
  optimizer = settings.optimizer
  rates = [("--learning_rate", optimizer.learning_rate, _RECIPES[optimizer.name])]
  if optimizer.name == "muon":
    rates.append(("--muon_learning_rate", optimizer.muon_peak, _MUON))
  warnings = []
  for flag, rate, recipe in rates:
    scaled_rate = _scaled_rate(recipe, settings)
    if not _LOWEST_RATIO <= rate / scaled_rate <= _HIGHEST_RATIO:
      warnings.append(
        f"The learning rate {flag}={rate:.3g} is {rate / scaled_rate:.2g} times what a batch of "
        f"{settings.step.global_batch_size} suggests at this width ({recipe.source}: "
        f"{recipe.learning_rate:g} at batch {recipe.batch_size} and width {recipe.hidden_size}). "
        "Far above, a run often never leaves the plateau near the unigram entropy; far below, it "
        f"is slow. {flag}={scaled_rate:.3g} is {recipe.source}, scaled by the square root of the "
        "batch and to this width."
      )

  num_steps = settings.num_train_steps
  share = optimizer.num_warmup_steps / num_steps
  if share > 0.5 or optimizer.num_warmup_steps < min(100, num_steps / 100):
    warnings.append(
      f"The warm-up of {optimizer.num_warmup_steps} steps is {share:.2%} of the run. ALBERT's is "
      f"2.5%, {max(1, num_steps // 40)} steps of this run. A short warm-up is unstable at a high "
      "rate; a long one leaves little time at the peak."
    )
  return warnings


def _scaled_rate(recipe: _Recipe, settings: PretrainingSettings) -> float:
  """The recipe's rate, scaled by the square root of the batch, √(B / B₀), and to the width.

  Models narrower than base bear a proportionally higher rate.

  Reference: LAMB, arXiv 1904.00962, section 4.3, for the square root.
  """
  of_batch = math.sqrt(settings.step.global_batch_size / recipe.batch_size)
  of_width = max(1.0, _BASE_WIDTH / settings.model.hidden_size)
  of_recipe = max(1.0, _BASE_WIDTH / recipe.hidden_size)
  return recipe.learning_rate * of_batch * of_width / of_recipe
