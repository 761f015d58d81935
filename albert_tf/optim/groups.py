"""Which variables decay, which adapt, and at what share of the rate: each in exactly one group."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import re

from albert_tf.errors import UserError

EXCLUDED_PATTERN = r"LayerNorm|layer_norm|bias"  # The original's exclusion list, searched in the full name.
DECAYED_PATTERN = r"(^|/)(kernel|(word|token_type|position)_embeddings|output_weights)$"
_BLOCK = re.compile(r"/group_(\d+)/inner_group_(\d+)/")
_EMBEDDINGS = re.compile(r"(^|/)(embeddings|embedding_hidden_mapping_in)/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterGroup:
  """Variables treated alike.

  Attributes:
    name: how messages call the group.
    pattern: regular expression searched in the variable's full name.
    decay: whether λ p joins the update direction.
    adapt: whether LAMB's trust ratio applies.
    learning_rate_multiplier: factor on the learning rate, at least 0.
  """

  name: str
  pattern: str
  decay: bool
  adapt: bool
  learning_rate_multiplier: float = 1.0

  def __post_init__(self) -> None:
    if not self.learning_rate_multiplier >= 0.0:
      raise UserError(
        "A learning-rate multiplier must not be negative. Received: "
        f"{self.learning_rate_multiplier} for group {self.name!r}. Use 0 to freeze a group."
      )


DEFAULT_GROUPS = (
  ParameterGroup(name="decayed", pattern=DECAYED_PATTERN, decay=True, adapt=True),
  ParameterGroup(name="excluded", pattern=EXCLUDED_PATTERN, decay=False, adapt=False),
)


def assign_groups(
  names: Iterable[str], groups: Sequence[ParameterGroup] = DEFAULT_GROUPS
) -> dict[str, ParameterGroup]:
  """Finds the one group of each variable.

  Args:
    names: full names of the variables, as in the checkpoint.
    groups: the groups, in any order.

  Returns:
    Name → group, in the order of `names`.

  Raises:
    UserError: variables that match no group or more than one; the message lists them all.

  Example:
    >>> assign_groups(["bert/pooler/dense/bias"])["bert/pooler/dense/bias"].name
    'excluded'
  """
  assigned: dict[str, ParameterGroup] = {}
  faults = []
  for name in names:
    matching = [group for group in groups if re.search(group.pattern, name)]
    if len(matching) == 1:
      assigned[name] = matching[0]
    else:
      faults.append(f"{name} ({', '.join(group.name for group in matching) or 'no group'})")
  if faults:
    raise UserError(
      "Every variable must match exactly one optimizer group. Received: "
      + "; ".join(faults)
      + f". Change the patterns of the groups {[group.name for group in groups]} or add a group."
    )
  return assigned


def layerwise_multipliers(names: Iterable[str], *, layer_decay: float) -> dict[str, float]:
  """Learning-rate multipliers that fall with the distance from the head, for fine-tuning.

  multiplier = layer_decay^(top - level); level 0 is the embeddings and their mapping, then one level
  for each owned transformer block in order, and the top is the pooler and every head. Layers that share
  parameters are one level, so the default ALBERT has three.

  Args:
    names: full names of the variables, as in the checkpoint.
    layer_decay: in (0, 1]; 1 changes nothing.

  Returns:
    Name → multiplier.

  Raises:
    UserError: `layer_decay` out of range.

  Reference: ELECTRA, arXiv 2003.10555, appendix B.
  """
  if not 0.0 < layer_decay <= 1.0:
    raise UserError(
      f"layer_decay must be above 0 and at most 1. Received: {layer_decay}. ELECTRA uses 0.8 to 0.9."
    )
  names = list(names)
  blocks = sorted({key for key in map(_block_of, names) if key is not None})
  levels = {key: i + 1 for i, key in enumerate(blocks)}
  top = len(blocks) + 1
  multipliers = {}
  for name in names:
    key = _block_of(name)
    level = levels[key] if key is not None else 0 if _EMBEDDINGS.search(name) else top
    multipliers[name] = layer_decay ** (top - level)
  return multipliers


def _block_of(name: str) -> tuple[int, int] | None:
  """(group, inner) of the transformer block that owns a variable; None outside the blocks."""
  match = _BLOCK.search(name)
  return (int(match[1]), int(match[2])) if match else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableRule:
  """How one variable is updated; see `ParameterGroup`."""

  decay: bool
  adapt: bool
  learning_rate_multiplier: float


def variable_rules(
  names: Iterable[str],
  *,
  groups: Sequence[ParameterGroup] = DEFAULT_GROUPS,
  multipliers: Mapping[str, float] | None = None,
) -> dict[str, VariableRule]:
  """The rule of every variable: its group's, times its own multiplier where one is given.

  Raises:
    UserError: as `assign_groups`.
  """
  multipliers = multipliers or {}
  return {
    name: VariableRule(
      decay=group.decay,
      adapt=group.adapt,
      learning_rate_multiplier=group.learning_rate_multiplier * multipliers.get(name, 1.0),
    )
    for name, group in assign_groups(names, groups).items()
  }
