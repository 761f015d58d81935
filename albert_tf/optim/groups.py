"""Which variables decay and adapt, by their names in the checkpoint."""

from collections.abc import Iterable
import re

from albert_tf.errors import UserError

# The two groups. Decayed variables also adapt under LAMB; excluded ones do neither (the original's exclusion list).
DECAYED_PATTERN = r"(^|/)(kernel|(word|token_type|position)_embeddings|output_weights)$"
EXCLUDED_PATTERN = r"LayerNorm|layer_norm|bias"


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
