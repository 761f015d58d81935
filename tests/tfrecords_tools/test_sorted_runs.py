"""Sorted runs: any merge, in one round or several, is one stable sort; work that is not whole is refused."""

import numpy as np
import pytest

from albert_tf.errors import UserError
from tfrecords_tools.pretraining import sorted_runs
from tfrecords_tools.pretraining.sorted_runs import KEY_SPACE, Run, groups_of_round, merge, merge_group


def _write_run(path, keys, records):
  keys = np.array(keys, np.uint64)
  order = np.argsort(keys, kind="stable")
  path.write_bytes(b"".join(records[i] for i in order))
  ends = np.cumsum([len(records[i]) for i in order], dtype=np.uint64)
  run = Run(str(path), "train", len(records), int(ends[-1]) if len(ends) else 0)
  np.stack([keys[order], ends], axis=1).tofile(run.index_path)
  return run


@pytest.fixture
def many(tmp_path):
  """23 runs, one of them empty, with equal keys among them; and all (key, record) in the order of the runs."""
  rng = np.random.default_rng(5)
  shared = rng.integers(0, KEY_SPACE, 40, np.uint64)  # Drawn again and again: ties across runs.
  runs, everything = [], []
  for number in range(23):
    count = 0 if number == 7 else int(rng.integers(1, 90))
    keys = [
      int(rng.choice(shared)) if rng.random() < 0.3 else int(rng.integers(0, KEY_SPACE, dtype=np.uint64))
      for _ in range(count)
    ]
    if number == 3:
      keys[:2] = [0, KEY_SPACE - 1]  # The two ends of the range.
    records = [f"<{number}:{place}>".encode() * int(rng.integers(1, 9)) for place in range(len(keys))]
    runs.append(_write_run(tmp_path / f"block-{number:03d}.run", keys, records))
    in_order = sorted(zip(keys, records, strict=True), key=lambda pair: pair[0])
    everything += in_order
  return runs, everything


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("part_bytes", [1 << 20, 700])
def test_a_merge_is_a_stable_sort_of_its_range(many, monkeypatch, num_shards, part_bytes):
  runs, everything = many
  monkeypatch.setattr(sorted_runs, "PART_BYTES", part_bytes)
  for shard in range(num_shards):
    low, high = (number * KEY_SPACE // num_shards for number in (shard, shard + 1))
    expected = sorted((pair for pair in everything if low <= pair[0] < high), key=lambda pair: pair[0])
    parts = list(merge(runs, low=low, high=high))
    assert b"".join(part.data for part in parts) == b"".join(record for _, record in expected)
    assert np.concatenate([part.keys for part in parts]).tolist() == [key for key, _ in expected]
    assert np.concatenate([part.sizes for part in parts]).tolist() == [len(record) for _, record in expected]
    assert len(parts) == 1 or part_bytes == 700


def test_rounds_change_no_byte_and_leave_only_their_result(many, monkeypatch, tmp_path):
  runs, _ = many
  expected = b"".join(part.data for part in merge(runs))
  monkeypatch.setattr(sorted_runs, "FAN_IN", 3)
  monkeypatch.setattr(sorted_runs, "PART_BYTES", 500)
  left, level = runs, 0
  while groups := groups_of_round(left):
    assert all(len(group) <= 3 for group in groups)
    paths = [str(tmp_path / f"merged-{level}-{number}.run") for number in range(len(groups))]
    left = [merge_group(group, path) for group, path in zip(groups, paths, strict=True)]
    # A killed command repeats the round: what is noted is taken, though its sources are gone.
    assert [merge_group(group, path) for group, path in zip(groups, paths, strict=True)] == left
    level += 1
  assert level == 2
  assert b"".join(part.data for part in merge(left)) == expected
  assert {path.name for path in tmp_path.glob("*.run")} == {
    f"merged-1-{number}.run" for number in range(len(left))
  }


def test_the_slower_of_two_at_the_same_merge_takes_what_the_faster_noted(many, tmp_path, monkeypatch):
  runs, _ = many
  path = str(tmp_path / "merged.run")
  merge = sorted_runs.merge
  faster = []

  def slower(runs, **more):
    monkeypatch.setattr(sorted_runs, "merge", merge)
    faster.append(merge_group(runs, path))
    return merge(runs, **more)

  monkeypatch.setattr(sorted_runs, "merge", slower)
  assert merge_group(runs, path) == faster[0]
  assert faster[0].is_whole()


@pytest.mark.parametrize("num_runs", [193, 5_000, 35_000, 300_000])
def test_no_merge_reads_more_runs_than_allowed(num_runs):
  """29,000 runs are 16 GB of text with 40 passes; more than 36,864 take two rounds."""
  runs: list[Run] = [None] * num_runs
  rounds = 0
  while groups := groups_of_round(runs):
    assert max(map(len, groups)) <= sorted_runs.FAN_IN
    assert sum(map(len, groups)) == len(runs)
    runs = [None] * len(groups)
    rounds += 1
  assert len(runs) <= sorted_runs.FAN_IN
  assert rounds == (1 if num_runs <= sorted_runs.FAN_IN**2 else 2)


def test_a_run_that_is_cut_short_or_gone_is_refused(many):
  runs, _ = many
  with open(runs[4].path, "r+b") as stream:
    stream.truncate(runs[4].num_bytes - 1)
  assert not runs[4].is_whole()
  with pytest.raises(UserError, match=r"block-004\.run, cut short"):
    list(merge(runs))
  runs[4].remove()
  with pytest.raises(UserError, match=r"block-004\.run\.keys, which is missing"):
    list(merge(runs))
