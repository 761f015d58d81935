"""The doctor's look at a bucket: an object written, read back and removed, or what keeps it from that."""

import pytest
from support.bucket.gcs_proxy import Faults

from albert_tf import doctor


@pytest.mark.parametrize(
  ("url", "faults", "found", "advice"),
  [
    ("gs://albert/run", Faults(), "written, read back, removed", ""),
    pytest.param(
      "gs://albert/run",
      Faults(refuse=((r"^upload_start albert/run/\.doctor", 403),)),
      "no permission",
      "gs://BUCKET",
      marks=pytest.mark.slow,
    ),
    pytest.param(
      "gs://no-such-bucket/run",
      Faults(),
      "there is no such bucket",
      "gs://BUCKET",
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_bucket(bucket, monkeypatch, url, faults, found, advice):
  for name, value in bucket.environment().items():
    monkeypatch.setenv(name, value)
  bucket.faults = faults
  check = doctor.check_directory(url)
  assert check.found.startswith(url)
  assert found in check.found
  assert advice in check.advice if advice else check.advice == ""
  assert [name for name in bucket.names() if "doctor" in name] == []
