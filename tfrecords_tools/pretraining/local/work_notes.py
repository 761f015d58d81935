"""What has been made of the text: a note for each finished block, and one when all are finished."""

from collections.abc import Collection
import json
import os
from typing import Any

from albert_tf import files
from tfrecords_tools.pretraining.blocks import Block, Outcome
from tfrecords_tools.pretraining.job import Job
from tfrecords_tools.pretraining.randomness import Place

_ALL = "made.json"


class WorkNotes:
  """The notes in a job's directory of unfinished work.

  The last block of a file is noted as such, so a finished file is recognised without reading its text. The note
  of all blocks comes before the first sorted run is merged away.
  """

  def __init__(self, job: Job):
    self._job = job

  def prefix(self, block: Block, held_out: Collection[Place]) -> str:
    """What the paths of a block's files begin with; a block is made again where a document of it is held out."""
    return self._prefix(block.file_index, block.index, any(map(block.holds, held_out)))

  def write(self, block: Block, held_out: Collection[Place], outcome: Outcome) -> None:
    end = block.first_document + len(block.documents)
    fields = {"documents": [block.first_document, end], "last": block.corpus is not None}
    self._write(f"{self.prefix(block, held_out)}.json", fields, outcome)

  def read(self, block: Block, held_out: Collection[Place]) -> Outcome | None:
    """What an earlier run made of a block; None where it did not, or not all of it is there."""
    return self._outcome(self._read(f"{self.prefix(block, held_out)}.json"))

  def read_file(self, file_index: int, held_out: Collection[Place]) -> tuple[Outcome, int | None]:
    """What was made of a file so far; and the first block that is missing, None where the file is finished."""
    total = self._job.empty_outcome()
    index = 0
    while True:
      note = self._read(f"{self._prefix(file_index, index, False)}.json")
      if note:
        here = range(*note["documents"])
        if any(place.file_index == file_index and place.document in here for place in held_out):
          note = self._read(f"{self._prefix(file_index, index, True)}.json")
      outcome = self._outcome(note)
      if note is None or outcome is None:
        return total, index
      total.add(outcome)
      if note["last"]:
        return total, None
      index += 1

  def write_all(self, outcome: Outcome) -> None:
    path = os.path.join(self._job.work_dir, _ALL)
    if not files.exists(path):
      self._write(path, {}, outcome)

  def read_all(self) -> Outcome | None:
    """What was made of the whole text; None before, and where runs are gone that no merge has taken up."""
    note = self._read(os.path.join(self._job.work_dir, _ALL))
    if note is None:
      return None
    outcome = self._outcome(note)
    # Looked at last: another machine may be merging, and removes runs once the merged one is noted.
    if outcome is None and any(name.startswith("merged-") for name in files.listdir(self._job.work_dir)):
      outcome = self._outcome(note, whole=False)
    return outcome

  def _prefix(self, file_index: int, index: int, held_out: bool) -> str:
    name = f"block-{file_index:05d}-{index:06d}{'-held-out' if held_out else ''}"
    return os.path.join(self._job.work_dir, name)

  def _write(self, path: str, fields: dict[str, Any], outcome: Outcome) -> None:
    fields = {"plan": self._job.plan, **fields, "outcome": outcome.to_json()}
    with files.atomic_writer(path, "w") as stream:
      stream.write(json.dumps(fields))

  def _read(self, path: str) -> dict[str, Any] | None:
    """A note; None without one, or where it is of another plan: two machines may have started at once."""
    if not files.exists(path):
      return None
    note: dict[str, Any] = json.loads(files.read_bytes(path))
    return note if note.get("plan") == self._job.plan else None

  def _outcome(self, note: dict[str, Any] | None, *, whole: bool = True) -> Outcome | None:
    if note is None:
      return None
    outcome = self._job.empty_outcome()
    outcome.add_json(note["outcome"])
    outcome.runs = [
      run.in_folder(self._job.work_dir) for run in outcome.runs
    ]  # A machine may mount it elsewhere.
    return None if whole and not all(run.is_whole() for run in outcome.runs) else outcome
