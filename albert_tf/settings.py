"""Settings as dataclass fields with default, help and bounds.

`Settings` checks the fields and turns them into JSON and back; `commands.define_flags` makes a command's flags from
them. A leaf: it imports nothing of ours but `errors` and `files`, and no TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import operator
import os
import types
import typing
from typing import Any, Self

from albert_tf import files
from albert_tf.errors import UserError


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
) -> Any:
  """A field of a `Settings` class, for `x: int = setting(3, "Number of x.", minimum=1)`.

  Args:
    default: without one the field must be given.
    help: one sentence for `--help` and the documentation.
    minimum, maximum, above, below: bounds; those with `above` and `below` are excluded.
    choices: the allowed values; a `Literal` type has the same effect.
    flag: the name of its flag if it differs from the field's; "" for a field without a flag.
    aliases: further names of the flag.
  """
  bounds = {"minimum": minimum, "above": above, "maximum": maximum, "below": below}
  metadata = {"help": help, "flag": flag, "aliases": tuple(aliases), "choices": choices, **bounds}
  return dataclasses.field(default=default, metadata=metadata)


# TensorFlow computes with 32 bits: 1e39 would become infinite there.
LARGEST_FLOAT = 3.4028234663852886e38
LARGEST_INT = 2**31 - 1

_BOUNDS = {
  "minimum": ("at least", operator.ge),
  "above": ("above", operator.gt),
  "maximum": ("at most", operator.le),
  "below": ("below", operator.lt),
}


class Field(typing.NamedTuple):
  """The description of one field."""

  name: str
  flag: str  # "": it has none.
  type: Any  # Without None, such as `int`, `tuple[str, ...]` or a `Settings` class.
  optional: bool  # Whether None is allowed.
  choices: tuple[Any, ...] | None
  default: Any  # `dataclasses.MISSING` where there is none.
  is_needed: bool  # Whether it must be given.
  metadata: Mapping[str, Any]  # What `setting` was given; empty for a plain field.

  @property
  def bounds(self) -> str:
    """The bounds in words, such as "at least 1"; empty for none."""
    given = ((words, self.metadata.get(name)) for name, (words, _) in _BOUNDS.items())
    return " and ".join(f"{words} {bound}" for words, bound in given if bound is not None)

  def holds(self, value: Any) -> bool:
    """Whether a value is within the bounds."""
    given = ((compare, self.metadata.get(name)) for name, (_, compare) in _BOUNDS.items())
    return all(bound is None or compare(value, bound) for compare, bound in given)

  def fits(self, value: Any) -> bool:
    """Whether a number is finite and of 32 bits; a `maximum` of its own may give an integer more."""
    if isinstance(value, float) or self.type is float:
      return is_finite(value)
    if isinstance(value, int) and self.metadata.get("maximum") is None:
      return abs(value) <= LARGEST_INT
    return True


def fields_of(cls: type) -> list[Field]:
  """All fields of a dataclass, in order."""
  hints = typing.get_type_hints(cls)
  return [_describe(field, hints[field.name]) for field in dataclasses.fields(cls)]


def _describe(field: Any, hint: Any) -> Field:
  is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
  others = [part for part in typing.get_args(hint) if part is not type(None)] if is_union else [hint]
  optional = is_union and len(others) < len(typing.get_args(hint))
  hint = others[0] if len(others) == 1 else Any
  choices = field.metadata.get("choices")
  if typing.get_origin(hint) is typing.Literal:
    choices, hint = typing.get_args(hint), type(typing.get_args(hint)[0])
  is_needed = field.default is field.default_factory  # Neither is there.
  flag = field.metadata.get("flag", "")
  flag = field.name if flag is None else flag
  return Field(
    field.name, flag, hint, optional, choices and tuple(choices), field.default, is_needed, field.metadata
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
      value = _settled(field.type, getattr(self, field.name))
      object.__setattr__(self, field.name, value)  # The class is frozen.
      _check(field, value)

  def to_dict(self) -> dict[str, Any]:
    """All fields as JSON types; `from_dict` is the inverse."""
    return {field.name: _plain(getattr(self, field.name)) for field in fields_of(type(self))}

  @classmethod
  def from_dict(cls, values: Mapping[str, Any], *, source: str) -> Self:
    """The inverse of `to_dict`; `source` is the file that messages name."""
    fields = {field.name: field for field in fields_of(cls)}
    if not isinstance(values, Mapping):
      raise UserError(f"{source} must hold a JSON object. Received: {values!r:.60}.")
    unknown = sorted(set(values) - set(fields))
    needed = {name for name, field in fields.items() if field.is_needed or len(field.choices or ()) == 1}
    missing = sorted(needed - set(values))  # One choice marks a format and its version: a file must have it.
    if unknown or missing:
      raise UserError(
        f"{source} must hold the settings of {cls.__name__}. Received: {', '.join(unknown) or 'nothing'} that it does "
        f"not know, without {', '.join(missing) or 'nothing'}. It was written by another version, or damaged."
      )
    parsed = {name: _parsed(fields[name].type, each, f"{name} in {source}") for name, each in values.items()}
    try:
      return cls(**parsed)
    except UserError as error:
      raise UserError(f"In {source}: {error}") from error


def _parsed(kind: Any, value: Any, source: str) -> Any:
  if isinstance(value, list) and typing.get_origin(kind) is tuple:
    return tuple(_parsed(typing.get_args(kind)[0], item, source) for item in value)
  is_settings = isinstance(kind, type) and issubclass(kind, Settings)
  return kind.from_dict(value, source=source) if is_settings and isinstance(value, Mapping) else value


def _settled(kind: Any, value: Any) -> Any:
  """A list as a tuple, a `pathlib.Path` as a string, an integer of NumPy as Python's."""
  if typing.get_origin(kind) is tuple and isinstance(value, (tuple, list)):
    item = typing.get_args(kind)[0]
    return tuple(_settled(item, element) for element in value)
  if kind is str and isinstance(value, os.PathLike):
    return files.text_of(value)
  if kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
    return operator.index(value)
  return value


def _is_of(kind: Any, value: Any) -> bool:
  """Whether a value has a field's type."""
  plain = typing.get_origin(kind) or kind
  if plain is tuple:
    item = typing.get_args(kind)[0]
    return isinstance(value, tuple) and all(_is_of(item, element) for element in value)
  if isinstance(value, bool):
    return kind in (bool, Any)
  return kind is Any or isinstance(value, (int, float) if kind is float else plain)


def _plain(value: Any) -> Any:
  if hasattr(value, "to_dict"):
    return value.to_dict()
  if isinstance(value, Mapping):
    return {key: _plain(item) for key, item in value.items()}
  return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _check(field: Field, value: Any) -> None:
  if value is None and field.optional:
    return
  name = field.flag or field.name
  if value is None:
    raise UserError(f"{name} is needed. Received: none.")
  if not _is_of(field.type, value):
    kind = field.type.__name__ if isinstance(field.type, type) else field.type
    raise UserError(f"{name} must be of the type {kind}. Received: {value!r:.60}.")
  if field.choices is not None and value not in field.choices:
    raise UserError(f"{name} must be one of {', '.join(map(str, field.choices))}. Received: {value!r}.")
  for item in value if isinstance(value, tuple) else (value,):
    if not field.holds(item):
      raise UserError(f"{name} must be {field.bounds}. Received: {item}.")
    if not field.fits(item):
      raise UserError(f"{name} must be a finite number of 32 bits. Received: {item!s:.60}. Give another one.")


def is_finite(number: float) -> bool:
  """Whether a number is finite, also in TensorFlow's 32 bits."""
  return abs(number) <= LARGEST_FLOAT  # NaN is not.


def differences(before: Any, now: Any, name: str = "") -> list[str]:
  """What changed between two JSON values, as "name before → now" with dotted names."""
  if isinstance(before, Mapping) and isinstance(now, Mapping):
    keys = sorted({*before, *now})
    return [
      each for key in keys for each in differences(before.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    ]
  if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
    return [each for pair in zip(before, now, strict=True) for each in differences(*pair, name)]
  return [] if before == now else [f"{name} {before!s:.100} → {now!s:.100}"]
