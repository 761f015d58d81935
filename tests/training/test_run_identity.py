"""A run keeps its records."""

import pathlib

import pytest
from support.tiny_pretraining import tiny_settings

from albert_tf.errors import UserError
from albert_tf.training.run_directory import RunDirectory

NEW = "checksums"


@pytest.fixture
def settings(tmp_path: pathlib.Path):
  return tiny_settings(tmp_path, "run")


def test_a_run_keeps_its_records(settings):
  directory = RunDirectory(settings.output_dir)
  directory.check(settings, NEW)
  directory.write(settings, NEW)
  directory.check(settings, NEW)
  with pytest.raises(UserError, match="made with another record_content: record_content checksums → others"):
    directory.check(settings, "others")
