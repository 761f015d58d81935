"""Locks, numbers and paths that files cannot have. Damaged files of every kind: tests/fuzz/test_files.py."""

from collections.abc import Callable
import errno
import math
import os
import pathlib
import tempfile

import pytest

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock


@pytest.mark.parametrize(
  "text", [b"", b'{"id": "a"}', b'{"id": "a", "host": "b", "pid": 1, "expires": "c"}']
)
def test_a_damaged_lock_holds_nobody(text: bytes, tmp_path: pathlib.Path) -> None:
  (tmp_path / "lock.json").write_bytes(text)
  DirectoryLock(f"file://{tmp_path}").refuse_others()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_written(tmp_path: pathlib.Path, value: float) -> None:
  path = tmp_path / "results.json"
  with pytest.raises(UserError) as caught:
    json_files.write(str(path), {"history": {"3": {"loss": value}}})
  assert str(path) in str(caught.value)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["link", "link/run"])
@pytest.mark.parametrize("use", [files.check_new, files.makedirs])
def test_a_link_that_leads_nowhere_is_no_output(
  name: str, use: Callable[[str], None], tmp_path: pathlib.Path
) -> None:
  (tmp_path / "link").symlink_to(tmp_path / "disk")
  with pytest.raises(UserError, match=f"Received: .*{tmp_path}/link, .*{tmp_path}/disk, "):
    use(str(tmp_path / name))
  assert not (tmp_path / "disk").exists()


def test_a_mount_point_cannot_be_replaced(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Such as the volume of a container."""
  monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path))
  with (
    pytest.raises(UserError, match=f"Received: {tmp_path}, "),
    files.atomic_directory(str(tmp_path)),
  ):
    pass
  assert list(tmp_path.iterdir()) == []


def test_a_directory_is_written_through_a_link(tmp_path: pathlib.Path) -> None:
  (tmp_path / "disk").mkdir()
  link = tmp_path / "link"
  link.symlink_to(tmp_path / "disk")
  with files.atomic_directory(str(link)) as folder:
    pathlib.Path(folder, "file").touch()
  assert link.is_symlink()
  assert [path.name for path in (tmp_path / "disk").iterdir()] == ["file"]
  assert len(list(tmp_path.iterdir())) == 2


def test_paths_are_compared_by_component() -> None:
  assert files.is_within("runs/mrpc/checkpoints/best", "runs/mrpc")
  assert files.is_within("runs/mrpc/", "runs/./mrpc")
  assert files.is_within("gs://bucket/run/seed_1", "gs://bucket/run/")
  for path in ("runs/mrpc_b", "runs", "gs://bucket/run"):
    assert not files.is_within(path, "runs/mrpc")
  assert not files.is_within("gs://bucket/run_b", "gs://bucket/run")


def test_a_full_disk_of_temporary_files_is_not_the_stores_fault(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  def move_into_place(source: str, target: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(files, "move_into_place", move_into_place)
  with pytest.raises(files.StoreError, match=f"Received: {tempfile.gettempdir()}: .* TMPDIR"):
    files.write_text("gs://albert/file", "text")
