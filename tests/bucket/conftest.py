"""One fake bucket and one process of commands in it for each file of tests."""

from collections.abc import Iterator

import pytest
from support.bucket.fake_bucket import FakeBucket
from support.bucket.gcs_proxy import Faults
from support.commands.forked_commands import ForkedCommands


@pytest.fixture(scope="module")
def module_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeBucket]:
  with FakeBucket(tmp_path_factory.mktemp("bucket")) as bucket:
    yield bucket


@pytest.fixture
def bucket(module_bucket: FakeBucket) -> Iterator[FakeBucket]:
  """The bucket, without faults at first."""
  module_bucket.faults = Faults()
  yield module_bucket
  module_bucket.faults = Faults()


@pytest.fixture(scope="module")
def commands(
  module_bucket: FakeBucket, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkedCommands]:
  # What killed commands leave on the disk goes with the tests.
  environment = module_bucket.environment(TMPDIR=str(tmp_path_factory.mktemp("temporary")))
  with ForkedCommands(environment) as running:
    yield running
