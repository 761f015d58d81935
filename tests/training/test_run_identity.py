"""A run keeps its records and its settings."""

import json
import pathlib

import pytest
from support.tiny_pretraining import tiny_settings

from albert_tf.errors import UserError
from albert_tf.pipelines.record_index import DataIdentity
from albert_tf.training.run_directory import RunDirectory
from albert_tf.training.settings import PretrainingSettings

NEW = DataIdentity("names and sizes", "checksums")


@pytest.fixture
def settings(tmp_path: pathlib.Path):
  return tiny_settings(tmp_path, "run")


def test_a_run_keeps_its_records(settings):
  directory = RunDirectory(settings.output_dir)
  directory.check(settings, NEW)
  directory.write(settings, NEW, versions={})
  directory.check(settings, NEW)
  with pytest.raises(UserError, match="made with another record_content: record_content checksums → others"):
    directory.check(settings, NEW._replace(content="others"))


def test_settings_of_a_run_are_read_again(settings):
  values = json.loads(json.dumps(settings.to_dict()))
  assert PretrainingSettings.from_dict(values, source="run.json") == settings
  values["optimizer"]["beta_3"] = 1.0
  with pytest.raises(UserError, match=r"run.json must hold the settings of OptimizerConfig.*beta_3"):
    PretrainingSettings.from_dict(values, source="run.json")
