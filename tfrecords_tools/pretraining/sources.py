"""Named parts of a corpus: which files each has, and how often its documents are gone through."""

from collections.abc import Sequence
import re
from typing import Any, NamedTuple

from albert_tf import files
from albert_tf.errors import UserError

UNNAMED = "unnamed"  # What plain patterns beside named sources are called.
_MOST_WEIGHT = 1000
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=(.*)", re.DOTALL)
_GRAMMAR = (
  "A source is NAME=PATTERN:WEIGHT, for example wiki=text/wiki/*.txt:2 or books=gs://bucket/books/*:0.5; NAME is a "
  "letter, then letters, digits, _ or -, and WEIGHT stands behind the last colon"
)


class Source(NamedTuple):
  """A part of the corpus; a corpus without named parts is one, whose name is empty.

  Attributes:
    name: as the user calls it.
    weight: passes over its documents, as a multiple of `dupe_factor`.
  """

  name: str = ""
  weight: float = 1.0

  @property
  def eval_split(self) -> str:
    """What its held-out files are called: `eval`, or `eval-NAME`."""
    return f"eval-{self.name}" if self.name else "eval"

  def passes(self, dupe_factor: int) -> tuple[int, float]:
    """Passes that every document gets, and the probability of one more.

    The product is taken of the decimal number that the user wrote: 10 x 0.7 is 7, not 6.999….
    """
    import fractions  # Not before there is work.

    whole, rest = divmod(fractions.Fraction(str(self.weight)) * dupe_factor, 1)
    return int(whole), float(rest)


def expand_sources(entries: Sequence[str]) -> tuple[list[str], list[Source]]:
  """The files of `--input`, in the order that numbers them, and the source of each.

  An entry is a glob pattern, or NAME=PATTERN:WEIGHT. It names a source exactly if it begins with a NAME and "=", so a
  path of the kind `date=2024/*` is written `./date=2024/*`. Several entries may belong to one source.

  Raises:
    UserError: an entry of neither kind, a pattern without files, a file or a name of two sources.
  """
  found: dict[str, Source] = {}  # Ordered, without repeats.
  weights: dict[str, float] = {}
  named = any(map(_NAME.match, entries))
  for entry in entries:
    source, pattern = _parse(entry) if _NAME.match(entry) else (Source(UNNAMED if named else ""), entry)
    if weights.setdefault(source.name, source.weight) != source.weight:
      raise UserError(
        f"A source has one weight. Received: --input={entry}, and {source.name} with {weights[source.name]:g} before. "
        "Give it the same weight everywhere, or two names."
      )
    for path in files.expand_globs([pattern]):
      other = found.setdefault(path, source)
      if other.name != source.name:
        raise UserError(
          f"A file belongs to one source. Received: {path}, which matches the patterns of {other.name} and "
          f"{source.name}. Make the patterns narrower."
        )
  return files.expand_globs([]) if not entries else list(found), list(found.values())


def _parse(entry: str) -> tuple[Source, str]:
  """The source and the pattern of an entry that begins with a name and "="."""
  match = _NAME.match(entry)
  assert match is not None
  name, rest = match.groups()
  pattern, _, text = rest.rpartition(":")
  try:
    weight = float(text)
  except ValueError:
    weight = -1.0
  if not pattern or not 0 < weight <= _MOST_WEIGHT:
    raise UserError(
      f"{_GRAMMAR}, a number above 0 and up to {_MOST_WEIGHT}. Received: --input={entry}. Write :1 behind it for the "
      f"usual number of passes, or ./{entry} if this is the path of files; to leave a source out, do not name it."
    )
  if name == UNNAMED:
    raise UserError(
      f"{UNNAMED!r} is what files without a source are called. Received: --input={entry}. Choose another name."
    )
  if files.glob(entry):
    raise UserError(
      f"An entry of --input must have one meaning. Received: {entry}, which is a source of weight {weight:g} and a "
      f"pattern that matches files. Write ./{entry} for the files, or rename them."
    )
  return Source(name, weight), pattern


def splits_of(sources: Sequence[Source]) -> tuple[str, ...]:
  """What kinds of files there are: train, and eval or eval-NAME for every source."""
  return ("train", *sorted({source.eval_split for source in sources}))


def mapping_of(sources: Sequence[Source]) -> dict[str, dict[str, Any]]:
  """Weight and numbers of the files of each source, for the plan; {} without named ones."""
  return {
    source.name: {
      "weight": source.weight,
      "files": [number for number, other in enumerate(sources) if other == source],
    }
    for source in sorted(set(sources))
    if source.name
  }
