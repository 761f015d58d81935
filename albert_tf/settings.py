"""Settings as dataclass fields with default, help and bounds.

`Settings` checks the fields and turns them into JSON and back; `commands.define_flags` makes a
command's flags from them. A leaf: it imports nothing of ours but `errors` and `files`, and no
TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import operator
import os
import types
import typing
from typing import Any, Self

from albert_tf import files
from albert_tf.errors import UserError

# TensorFlow computes with 32 bits: 1e39 would become infinite there.
LARGEST_FLOAT = 3.4028234663852886e38
LARGEST_INT = 2**31 - 1

# Argument of `setting` → its words in messages, and what must hold for a value and the bound.
_BOUNDS = {
  "minimum": ("at least", operator.ge),
  "above": ("above", operator.gt),
  "maximum": ("at most", operator.le),
  "below": ("below", operator.lt),
}


def setting(
  default: Any = dataclasses.MISSING,
  help: str = "",
  *,
  minimum: float | None = None,
  maximum: float | None = None,
  above: float | None = None,
  below: float | None = None,
  choices: Sequence[Any] | None = None,
  flag: str | None = None,
  aliases: Sequence[str] = (),
  repeated: bool = False,
) -> Any:
  """A field of a `Settings` class, for `x: int = setting(3, "Number of x.", minimum=1)`.

  Args:
    default: without one the field must be given.
    help: one sentence for `--help` and the documentation.
    minimum, maximum, above, below: bounds; those with `above` and `below` are excluded.
    choices: the allowed values; a `Literal` type has the same effect.
    flag: the name of its flag if it differs from the field's; "" for a field without a flag.
    aliases: further names of the flag.
    repeated: whether a flag is given once for each item of a tuple, and not with commas.
  """
  bounds = {"minimum": minimum, "above": above, "maximum": maximum, "below": below}
  metadata = {"help": help, "flag": flag, "aliases": aliases, "choices": choices, **bounds}
  metadata["repeated"] = repeated
  return dataclasses.field(default=default, metadata=metadata)


class Field(typing.NamedTuple):
  """The description of one field."""

  name: str
  # "": it has none.
  flag: str
  # Without None, such as `int`, `tuple[str, ...]` or a `Settings` class.
  type: Any
  # Whether None is allowed.
  optional: bool
  choices: tuple[Any, ...] | None
  # `dataclasses.MISSING` where there is none.
  default: Any
  # Whether it must be given.
  is_needed: bool
  # The arguments of `setting`; empty for a plain field.
  metadata: Mapping[str, Any]

  def limits(self) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
    """The bounds that it has, such as ("at least", operator.ge, 1)."""
    return [
      (words, holds, self.metadata[name])
      for name, (words, holds) in _BOUNDS.items()
      if self.metadata.get(name) is not None
    ]

  @property
  def bounds(self) -> str:
    """The bounds in words, such as "at least 1"; empty for none."""
    return " and ".join(f"{words} {bound}" for words, _, bound in self.limits())

  def has_32_bits(self, value: Any) -> bool:
    """Whether a number is finite and of 32 bits; a `maximum` of its own may allow a longer int."""
    if isinstance(value, float) or self.type is float:
      return is_finite(value)
    if isinstance(value, int) and self.metadata.get("maximum") is None:
      return abs(value) <= LARGEST_INT
    return True


def fields_of(cls: type) -> list[Field]:
  """All fields of a dataclass, in order."""
  hints = typing.get_type_hints(cls)
  return [_describe(field, hints[field.name]) for field in dataclasses.fields(cls)]


def _describe(field: dataclasses.Field[Any], hint: Any) -> Field:
  # The one union is with None, which comes last: `int | None` is an int that may be missing.
  optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
  if optional:
    hint = typing.get_args(hint)[0]

  choices = field.metadata.get("choices")
  if typing.get_origin(hint) is typing.Literal:
    choices = typing.get_args(hint)
    hint = type(choices[0])

  # A plain field has no metadata and no flag; `setting` has None for the field's own name.
  flag = field.metadata.get("flag", "")
  if flag is None:
    flag = field.name
  return Field(
    name=field.name,
    flag=flag,
    type=hint,
    optional=optional,
    choices=choices,
    default=field.default,
    is_needed=field.default is field.default_factory,  # Both are MISSING.
    metadata=field.metadata,
  )


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Settings:
  """The base class of all settings. A subclass is a frozen dataclass with checked values.

  Raises:
    UserError: a value has another type, is out of its bounds, or is not one of its choices.
  """

  def __init_subclass__(cls, *, kw_only: bool = True) -> None:
    dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)

  def __post_init__(self) -> None:
    for field in fields_of(type(self)):
      value = _converted(field.type, getattr(self, field.name), field.name)
      object.__setattr__(self, field.name, value)  # The class is frozen.
      _check(field, value)

  def to_dict(self) -> dict[str, Any]:
    """All fields as JSON has them, with lists for tuples; `from_dict` is the inverse."""
    values = dataclasses.asdict(self)  # type: ignore[call-overload]  # Each subclass is a dataclass.
    return json.loads(json.dumps(values))

  @classmethod
  def from_dict(cls, values: Mapping[str, Any], *, source: str) -> Self:
    """The inverse of `to_dict`; `source` is the file that messages name."""
    if not isinstance(values, Mapping):
      raise UserError(f"{source} must hold a JSON object. Received: {values!r:.60}.")

    # A field with one choice marks a format and its version: a file must have it.
    fields = {field.name: field for field in fields_of(cls)}
    needed = {
      name for name, field in fields.items() if field.is_needed or len(field.choices or ()) == 1
    }
    unknown = sorted(values.keys() - fields.keys())
    missing = sorted(needed - values.keys())
    if unknown or missing:
      raise UserError(
        f"{source} must hold the settings of {cls.__name__}. Received: "
        f"{', '.join(unknown) or 'nothing'} that it does not know, without "
        f"{', '.join(missing) or 'nothing'}. It was written by another version, or damaged."
      )

    try:
      return cls(**values)
    except UserError as error:
      raise UserError(f"In {source}: {error}") from error


def _converted(kind: Any, value: Any, name: str) -> Any:
  """A value as its field's type has it: from JSON, from NumPy, or a path.

  A list becomes a tuple, an object `Settings`, an integer of NumPy Python's, a `pathlib.Path` a
  string. What does not fit stays as it is, for `_check`.
  """
  if typing.get_origin(kind) is tuple and isinstance(value, (tuple, list)):
    item_kind = typing.get_args(kind)[0]
    return tuple(_converted(item_kind, item, name) for item in value)
  if isinstance(kind, type) and issubclass(kind, Settings) and isinstance(value, Mapping):
    return kind.from_dict(value, source=name)
  if kind is str and isinstance(value, os.PathLike):
    return files.text_of(value)
  if kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
    return operator.index(value)
  return value


def _check(field: Field, value: Any) -> None:
  """Raises `UserError` if a value has another type, is out of bounds, or is none of the choices."""
  if value is None and (field.optional or field.type is Any):
    return
  name = field.flag or field.name
  if value is None:
    flags = [f"--{name}"]
    if field.choices:
      flags = [f"--{name}={choice}" for choice in field.choices]
    raise UserError(f"{name} is needed. Received: none. Use {' or '.join(flags)}.")
  if not _has_type(field.type, value):
    kind = field.type
    if isinstance(kind, type):
      kind = kind.__name__
    raise UserError(f"{name} must be of the type {kind}. Received: {value!r:.60}.")
  if field.choices is not None and value not in field.choices:
    choices = ", ".join(map(str, field.choices))
    raise UserError(f"{name} must be one of {choices}. Received: {value!r}.")

  # The bounds of a tuple are those of its items.
  items = value
  if not isinstance(value, tuple):
    items = (value,)
  for item in items:
    if not all(holds(item, bound) for _, holds, bound in field.limits()):
      raise UserError(f"{name} must be {field.bounds}. Received: {item}.")
    if not field.has_32_bits(item):
      raise UserError(
        f"{name} must be a finite number of 32 bits. Received: {item!s:.60}. Give another one."
      )


def _has_type(kind: Any, value: Any) -> bool:
  if kind is Any:
    return True
  if typing.get_origin(kind) is tuple:
    item_kind = typing.get_args(kind)[0]
    return isinstance(value, tuple) and all(_has_type(item_kind, item) for item in value)
  # For Python True is an integer, here it is a mistake. An integer is a fine float.
  if isinstance(value, bool):
    return kind is bool
  if kind is float:
    return isinstance(value, (int, float))
  return isinstance(value, typing.get_origin(kind) or kind)


def is_finite(number: float) -> bool:
  """Whether a number is finite, also in TensorFlow's 32 bits."""
  return abs(number) <= LARGEST_FLOAT  # NaN is not.


def differences(before: Any, now: Any, name: str = "") -> list[str]:
  """What changed between two JSON values, as "name before → now" with dotted names.

  {"model": {"size": 1, "depth": 2}} and {"model": {"size": 3, "depth": 2}} give
  ["model.size 1 → 3"].
  """
  changes = []
  if isinstance(before, Mapping) and isinstance(now, Mapping):
    for key in sorted(before.keys() | now.keys()):
      dotted_name = f"{name}.{key}".lstrip(".")
      changes += differences(before.get(key), now.get(key), dotted_name)
  elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
    for before_item, now_item in zip(before, now, strict=True):
      changes += differences(before_item, now_item, name)
  elif before != now:
    changes.append(f"{name} {before!s:.100} → {now!s:.100}")
  return changes
