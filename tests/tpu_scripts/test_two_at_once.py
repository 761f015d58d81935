"""Of two commands that start together in one directory, one works undisturbed, the other is refused.

ROUNDS=20 in the environment: so many starts of each pair.
"""

import collections
import os

import pytest
from support.bucket.story import comparable, steps, write_inputs
from support.commands.forked_commands import ForkedCommands
from support.made_records import contents

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3000)]
ROUNDS = int(os.environ.get("ROUNDS", "2"))
REFUSALS = (
  "One process at a time writes",
  "The output must not exist yet",
  "A directory is written once",
)


@pytest.fixture(scope="module")
def commands():
  with ForkedCommands() as running:
    yield running


@pytest.fixture(scope="module")
def story(commands, tmp_path_factory):
  """The flags of every command, and its output files without a second command."""
  folder = tmp_path_factory.mktemp("alone")
  write_inputs(folder)
  found = steps(lambda name: str(folder / name), folder / "work")
  del found["conversion"], found["answers"]
  for step in found.values():
    done = commands.run(step.script, **step.flags)
    assert done.status == 0, done.stderr
  return {
    name: (step, comparable(contents(folder / step.flags["output_dir"])))
    for name, step in found.items()
  }


@pytest.mark.parametrize("name", ["records", "pretraining", "fine-tuning", "export"])
def test_one_of_two_is_refused(commands, story, tmp_path, name):
  step, alone = story[name]
  ends = collections.Counter()
  for number in range(ROUNDS):
    place = tmp_path / str(number)
    flags = {**step.flags, "output_dir": place}
    flags |= {"work_dir": tmp_path / f"work-{number}"} if name == "records" else {}
    pair = [commands.start(step.script, **flags) for _ in range(2)]
    loser, winner = sorted(map(commands.wait, pair), key=lambda command: -command.status)
    ends[loser.status, winner.status] += 1
    said = loser.stderr + winner.stderr
    assert (loser.status, winner.status) == (
      2,
      0,
    ) or f"nothing to do: {place} is finished" in said, said
    refusals = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(refusals) == (loser.status == 2)
    assert all(any(words in line for words in REFUSALS) for line in refusals), refusals
    assert "Traceback" not in said
    left = comparable(contents(place))
    assert left.keys() == alone.keys()
    assert [each for each in alone if left[each] != alone[each]] == []
  print(f"two of {name}, statuses of the two: {dict(ends)}")
