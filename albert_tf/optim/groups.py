"""Which variables decay and adapt, and at what share of the rate, by their names in the checkpoint."""

from collections.abc import Iterable
import re

from albert_tf.errors import UserError

# The two groups. Decayed variables also adapt under LAMB; excluded ones do neither (the original's exclusion list).
DECAYED_PATTERN = r"(^|/)(kernel|(word|token_type|position)_embeddings|output_weights)$"
EXCLUDED_PATTERN = r"LayerNorm|layer_norm|bias"
_BLOCK = re.compile(r"/group_(\d+)/inner_group_(\d+)/")
_EMBEDDINGS = re.compile(r"(^|/)(embeddings|embedding_hidden_mapping_in)/")


def assign_decay(names: Iterable[str]) -> dict[str, bool]:
  """Name → whether the variable decays (and adapts); each is in exactly one of the two groups.

  Raises:
    UserError: names that match neither pattern or both; the message lists them all.

  Example:
    >>> assign_decay(["bert/pooler/dense/bias"])
    {'bert/pooler/dense/bias': False}
  """
  decays: dict[str, bool] = {}
  faults = []
  for name in names:
    decayed, excluded = bool(re.search(DECAYED_PATTERN, name)), bool(re.search(EXCLUDED_PATTERN, name))
    decays[name] = decayed
    if decayed == excluded:
      faults.append(f"{name} ({'decayed, excluded' if decayed else 'no group'})")
  if faults:
    raise UserError(
      f"Every variable must match exactly one optimizer group. Received: {'; '.join(faults)}. "
      "Change DECAYED_PATTERN or EXCLUDED_PATTERN in albert_tf/optim/groups.py."
    )
  return decays


def layerwise_multipliers(names: Iterable[str], *, layer_decay: float) -> dict[str, float]:
  """Name → learning-rate multiplier that falls with the distance from the head, for fine-tuning.

  multiplier = layer_decay^(top - level); level 0 is the embeddings and their mapping, then one level
  for each owned transformer block in order, and the top is the pooler and every head. Layers that share
  parameters are one level, so the default ALBERT has three.

  Raises:
    UserError: `layer_decay` is not in (0, 1]; 1 changes nothing.

  Reference: ELECTRA, arXiv 2003.10555, appendix B.
  """
  if not 0.0 < layer_decay <= 1.0:
    raise UserError(
      f"layer_decay must be above 0 and at most 1. Received: {layer_decay}. ELECTRA uses 0.8 to 0.9."
    )
  names = list(names)
  levels = {key: i + 1 for i, key in enumerate(sorted({key for key in map(_block_of, names) if key}))}
  top = len(levels) + 1
  multipliers = {}
  for name in names:
    key = _block_of(name)
    level = levels[key] if key else 0 if _EMBEDDINGS.search(name) else top
    multipliers[name] = layer_decay ** (top - level)
  return multipliers


def _block_of(name: str) -> tuple[int, int] | None:
  """(group, inner) of the transformer block that owns a variable; None outside the blocks."""
  match = _BLOCK.search(name)
  return (int(match[1]), int(match[2])) if match else None
