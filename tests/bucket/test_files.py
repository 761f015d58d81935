"""What the library reads and writes in a bucket is what it reads and writes on a disk."""

import errno
import json
import tempfile

import pytest
from support.bucket.gcs_proxy import Faults

from albert_tf import files


@pytest.mark.slow
def test_the_file_module_does_the_same_on_a_disk_and_in_a_bucket(bucket, commands, tmp_path):
  program = "tests/bucket/programs/file_module.py"
  local = commands.run(program, place=tmp_path / "files")
  assert local.status == 0, local.stderr
  seen = json.loads(local.stdout)
  assert len(seen) > 30
  for rate in (0.0, 0.1):
    bucket.faults = Faults(rate=rate, seed=2)
    remote = commands.run(program, place=bucket.url(f"files-{rate}"))
    assert remote.status == 0, remote.stderr
    assert json.loads(remote.stdout) == seen
  assert bucket.proxy.counts()["fault:503"] > 3


def test_an_upload_taken_for_complete_is_made_again(bucket, commands):
  """A connection that breaks in an upload: the server keeps nothing of it, and the client takes it for done."""
  program = "tests/bucket/programs/write_one.py"
  before = bucket.proxy.counts().get("fault:cut_upload", 0)
  bucket.faults = Faults(rate=1, how=("cut_upload",), on="^upload ", at_most=2)
  done = commands.run(program, path=bucket.url("cut/a"), size=100_000)
  assert done.status == 0, done.stderr
  assert bucket.proxy.counts()["fault:cut_upload"] == before + 2
  assert bucket.get("cut/a") == b"x" * 100_000
  bucket.faults = Faults(rate=1, how=("cut_upload",), on="^upload ")
  done = commands.run(program, path=bucket.url("cut/a"), size=200_000)
  assert done.status == 2, done.stderr
  assert "of 200000 bytes arrived, 4 times" in done.stderr
  assert bucket.names("cut/") == ["cut/a"]
  assert bucket.get("cut/a") == b"x" * 100_000


def test_a_full_disk_of_temporary_files_is_not_the_stores_fault(monkeypatch):
  def publish(source, target):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(files, "publish", publish)
  with pytest.raises(files.StoreError, match=f"{tempfile.gettempdir()}: no space is left .* set TMPDIR"):
    files.write_text("gs://albert/file", "text")
