"""Which part of a job one machine of several does, on a file system that all of them share."""

from collections.abc import Iterable, Sequence
import dataclasses

from albert_tf.errors import UserError

# Of what each worker or machine would have; a larger file would keep one longer than the others.
LARGEST_SHARE = 1.2


class WaitForOthersError(Exception):
  """A machine has done what it can; the message says what others must do first, or what comes next."""


@dataclasses.dataclass(frozen=True)
class Share:
  """Share `index` of `count` equal ones; the default is everything."""

  index: int = 0
  count: int = 1

  def __post_init__(self) -> None:
    if not 0 <= self.index < self.count:
      raise UserError(
        "task_index must be at least 0 and below num_tasks. "
        f"Received: task_index={self.index}, num_tasks={self.count}. Count the tasks from 0."
      )

  @property
  def is_whole(self) -> bool:
    return self.count == 1

  def owns(self, number: int) -> bool:
    """Whether the thing with that number, of many alike, is of this share."""
    return number % self.count == self.index

  def owners(self, sizes: Sequence[int]) -> list[int | None]:
    """Whose each file is; None for a file so large that all read it and share out its blocks."""
    owners: list[int | None] = [None] * len(sizes)
    loads = [0] * self.count
    largest = LARGEST_SHARE * sum(sizes) / self.count
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
      if sizes[number] <= largest:
        owner = owners[number] = loads.index(min(loads))
        loads[owner] += sizes[number]
    return owners

  def done(self, what: str, waiting_for: Iterable[int]) -> WaitForOthersError:
    """What to say when this share of a stage is done."""
    others = sorted(set(waiting_for))
    begin = f"Task {self.index} of {self.count} has done its share: {what}. "
    if others:
      tasks = ", ".join(map(str, others[:20])) + (", …" if len(others) > 20 else "")
      return WaitForOthersError(
        f"{begin}Missing is at least that of task {tasks}. When all have ended, give every task its command again, or "
        "give it once without --task_index and --num_tasks: that does all that is missing."
      )
    return WaitForOthersError(
      f"{begin}When all tasks have ended, give the command once without --task_index and --num_tasks: it does "
      "what is missing and writes the manifest."
    )
