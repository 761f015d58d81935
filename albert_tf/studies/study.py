"""What a study of the paper is: arms that differ in one thing, the text they need, what is asked of them."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from albert_tf.errors import UserError

SCALES = ("laptop", "paper")
SHARED, UNSHARED = "--sharing=all", "--sharing=none"
SENTENCE_ACCURACY = "sentence_accuracy"  # Of sentence order or next sentence, whichever the arm has learned.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataKind:
  """One set of records; sets of one study differ in nothing but this.

  Attributes:
    name: of its directory.
    sentence_pair: how the two segments come about; see create_pretraining_data.py.
    half: made of the first half of the text files only. The second half is what more data adds.
  """

  name: str
  sentence_pair: str
  half: bool = False


SOP = DataKind(name="sop", sentence_pair="sop")
NSP = DataKind(name="nsp", sentence_pair="nsp")
ORDERED = DataKind(name="ordered", sentence_pair="ordered")
HALF = DataKind(name="half", sentence_pair="sop", half=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
  """One row of a study's table.

  Attributes:
    name: of its directories, and for --arms.
    titles: scale → what the table calls it.
    flags: scale → the flags of run_pretrain.py that make it; at a scale that is not here it does not run.
    data: what it is trained on.
    after: the arm whose weights, of the same seed, it starts from, where that one runs at the scale.
    time_of: the arm that says how long it trains: as many hours as that one's updates took.
    paper: heading → the paper's figure in this row.
  """

  name: str
  titles: Mapping[str, str]
  flags: Mapping[str, tuple[str, ...]]
  data: DataKind = SOP
  after: str = ""
  time_of: str = ""
  paper: Mapping[str, float | str] = dataclasses.field(default_factory=dict)


def arm(
  name: str,
  title: str,
  paper_flags: str,
  laptop_flags: str | None = None,
  *,
  laptop_title: str = "",
  scales: Sequence[str] = SCALES,
  **others: Any,
) -> Arm:
  """An arm from its flags as one text; on a laptop flags and title are the paper's unless it has its own."""
  texts = {"paper": paper_flags, "laptop": paper_flags if laptop_flags is None else laptop_flags}
  flags = {scale: tuple(texts[scale].split()) for scale in scales}
  return Arm(name=name, titles={"paper": title, "laptop": laptop_title or title}, flags=flags, **others)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
  """One table or figure of the paper.

  Attributes:
    name: for --study.
    title: of its table.
    paper: which table or figure.
    question: what it answers, in a sentence.
    arms: in the order of the table; none: the runs of --runs.
    columns: metrics of the table, in order; see `results`.
    curves: panels of its picture: (split, metric) each.
    probes: record sets on whose held-out part every trained arm is measured by evaluate.py.
    eval_data: the one held-out set of all arms; None: each arm's own.
    layers: measure what every layer does to its input (figure 1).
    laptop_seeds: default of --seeds on a laptop; at the paper's scale it is 1.
  """

  name: str
  title: str
  paper: str
  question: str
  arms: tuple[Arm, ...]
  columns: tuple[str, ...] = ("parameters", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY)
  curves: tuple[tuple[str, str], ...] = (("eval", "masked_lm_loss"),)
  probes: tuple[DataKind, ...] = ()
  eval_data: DataKind | None = None
  layers: bool = False
  laptop_seeds: tuple[int, ...] = (1, 2, 3)

  def arms_at(self, scale: str) -> tuple[Arm, ...]:
    """The arms that run at a scale."""
    return tuple(arm for arm in self.arms if scale in arm.flags)

  def choose(self, names: Sequence[str], scale: str) -> tuple[Arm, ...]:
    """The arms with these names, all for none; in the study's order.

    Raises:
      UserError: an arm is unknown, does not run at this scale, or needs another one that is not chosen.
    """
    known = {arm.name: arm for arm in self.arms_at(scale)}
    unknown = sorted(set(names) - known.keys())
    if unknown:
      raise UserError(
        f"Unknown arm at the scale {scale}. Received: {unknown[0]!r}. There are: {', '.join(known)}."
      )
    chosen = tuple(arm for arm in known.values() if not names or arm.name in names)
    for arm in chosen:
      missing = {arm.after, arm.time_of} & known.keys() - {other.name for other in chosen}
      if missing:
        raise UserError(f"The arm {arm.name} is made from the arm {missing.pop()}, which must be chosen too.")
    return chosen


def flag_values(flags: Sequence[str]) -> dict[str, str]:
  """Name → value of flags as `--name=value`; the last one counts, as for absl. `--name` alone has "true"."""
  pairs = (flag.lstrip("-").partition("=") for flag in flags)
  return {name: value if equals else "true" for name, equals, value in pairs}


def last_of_each(flags: Sequence[str]) -> tuple[str, ...]:
  """The flags without those that a later one replaces: one of the same name, or of --size and --albert_config_file."""
  names = [flag.lstrip("-").partition("=")[0].replace("albert_config_file", "size") for flag in flags]
  return tuple(dict(zip(names, flags, strict=True)).values())
