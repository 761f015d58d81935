"""Shared code of all fuzzers: number of cases, and damage to good files."""

import collections
from collections.abc import Callable
import functools
import json
import os
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

# Given: many cases from it, as `make fuzz` runs them; else few, always equal.
SEED = os.environ.get("FUZZ_SEED", "")
CASES: collections.Counter[str] = collections.Counter()  # How many each fuzzer ran.


def fuzz(*, cost: int = 1, **strategies: Any) -> Callable[..., Any]:
  """Hypothesis' `given` of a test, with fewer cases for a higher cost."""

  def decorate(test: Callable[..., Any]) -> Any:
    @functools.wraps(test)
    def counted(*args: Any, **kwargs: Any) -> None:
      name = f"{test.__name__.removeprefix('test_')} {kwargs.get('name', '')}"
      CASES[name.strip().replace(" ", ":")] += 1
      test(*args, **kwargs)

    choose = hypothesis.settings(
      max_examples=max(1, (400 if SEED else 20) // cost),
      derandomize=not SEED,
      database=None,
      deadline=None,
      phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if cost < 20 else [])],
      suppress_health_check=list(HealthCheck),
    )
    given = choose(hypothesis.given(**strategies)(counted))
    return hypothesis.seed(int(SEED))(given) if SEED else given

  return decorate


_ODD_BYTES = [
  b"\0",
  b"\xff" * 8,
  b"\xff" * 7 + b"\x7f",
  b"\xed\xa0\x80",
  b"\xef\xbb\xbf",
  b'"',
  b"\n",
]
_BYTES = st.binary(min_size=1, max_size=12) | st.sampled_from(
  [*_ODD_BYTES, b"\x80" * 10, b"{[" * 9]
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
  """The bytes with one to three changes: overwritten, inserted or removed parts, or a missing end."""
  data = content
  for _ in range(draw(st.integers(1, 3))):
    a, b, c, d = (draw(st.integers(0, len(data))) for _ in range(4))
    new = draw(_BYTES | st.sampled_from([b"", data[c:d]]))
    data = data[:a] + new + data[draw(st.sampled_from([a, b, a + len(new), len(data)])) :]
  return data


_VALUES: list[Any] = [
  None, True, False, 0, 1, -1, 2, 1e308, 0.5, -0.0, float("nan"), float("inf"), 2**31, 2**63, -(2**63), 10**9, 10**400,
  "", "x", "true", "1", "\ud800", "\0", "../x", "x" * 5000, [], {}, [[]], [None], ["x", 1], {"x": 1}, [{}] * 3,
  "@deep", "@parsed",
]  # fmt: skip


@st.composite
def damaged_json(draw: st.DrawFn, value: Any) -> bytes:
  """JSON with other types, names, depth, or bytes."""
  for _ in range(draw(st.integers(1, 3))):
    value = _changed(draw, value)
  text = json.dumps(value, ensure_ascii=draw(st.booleans()))
  # Deeper than Python's parser goes, and deep enough to be parsed.
  for name, levels in (("@deep", 20_000), ("@parsed", 500)):
    text = text.replace(f'"{name}"', "[" * levels + "]" * levels)
  data = text.encode("utf-8", "surrogatepass")
  return draw(damaged(data)) if draw(st.integers(0, 3)) == 0 else data


def _changed(draw: st.DrawFn, value: Any) -> Any:
  other = draw(st.sampled_from(_VALUES))
  if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 7)) == 0:
    return other
  items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
  name = draw(st.sampled_from(list(items)))
  match draw(st.sampled_from(["change", "change", "change", "rename", "add"])):
    case "change":
      items[name] = _changed(draw, items[name])
    case "rename":
      items[f"{name}s"] = items.pop(name)
    case "add":
      items["more"] = other
  if draw(st.integers(0, 7)) == 0:
    items.popitem()
  return items if isinstance(value, dict) else list(items.values())
