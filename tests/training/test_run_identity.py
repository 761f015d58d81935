"""A run keeps its records and the order it began with; what older versions did not note is taken as it was."""

import dataclasses
import json
import pathlib

import pytest
from support.tiny_pretraining import tiny_settings

from albert_tf.errors import UserError
from albert_tf.pipelines.order import ORDER_VERSION
from albert_tf.pipelines.record_index import DataIdentity
from albert_tf.training.run_directory import RUN_FILE, RunDirectory
from albert_tf.training.settings import MaskingConfig, PretrainingSettings

VOCABULARY = pathlib.Path(__file__).parents[1] / "goldens/spm8k.model"
NEW = DataIdentity("names and sizes", "checksums", ORDER_VERSION)


@pytest.fixture
def settings(tmp_path: pathlib.Path):
  return tiny_settings(tmp_path, "run")


def test_a_new_run_has_the_newest_order_and_keeps_its_records(settings):
  directory = RunDirectory(settings.output_dir)
  assert directory.order_version() == ORDER_VERSION
  directory.check(settings, NEW)
  directory.write(settings, NEW, versions={})
  directory.check(settings, NEW)
  with pytest.raises(UserError, match="made with another record_content: record_content checksums → others"):
    directory.check(settings, NEW._replace(content="others"))


def test_an_older_run_continues_with_the_first_order(settings):
  directory = RunDirectory(settings.output_dir)
  directory.write(settings, NEW, versions={})
  path = pathlib.Path(settings.output_dir) / RUN_FILE
  record = json.loads(path.read_text())
  for key in ("order_version", "record_content"):
    del record["identity"][key]
  path.write_text(json.dumps(record))
  version = directory.order_version()
  assert version == 1
  directory.check(settings, NEW._replace(order_version=version))
  directory.write(settings, NEW._replace(order_version=version), versions={})
  assert directory.order_version() == 1  # And from now on its records' content counts.
  with pytest.raises(UserError, match="record_content"):
    directory.check(settings, NEW._replace(order_version=1, content="others"))
  with pytest.raises(UserError, match="another records"):
    directory.check(settings, NEW._replace(order_version=1, fingerprint="other files"))


def test_an_older_run_with_fresh_masks_continues_unless_the_order_would_now_be_drawn(settings):
  masking = MaskingConfig(masked_lm_prob=0.15, max_predictions_per_seq=5, ngram_probabilities=(1.0,))
  settings = dataclasses.replace(settings, masking=masking, tokenizer_path=str(VOCABULARY))
  directory = RunDirectory(settings.output_dir)
  directory.write(settings, NEW, versions={})
  path = pathlib.Path(settings.output_dir) / RUN_FILE
  record = json.loads(path.read_text())
  del record["identity"]["masking"]["redraw_order"]
  path.write_text(json.dumps(record))
  directory.check(settings, NEW)
  with pytest.raises(UserError, match=r"another masking: redraw_order False → True\."):
    directory.check(
      dataclasses.replace(settings, masking=dataclasses.replace(masking, redraw_order=True)), NEW
    )


def test_settings_of_a_run_are_read_again(settings):
  values = json.loads(json.dumps(settings.to_dict()))
  assert PretrainingSettings.from_dict(values, source="run.json") == settings
  values["optimizer"]["beta_3"] = 1.0
  with pytest.raises(UserError, match=r"run.json must hold the settings of OptimizerConfig.*beta_3"):
    PretrainingSettings.from_dict(values, source="run.json")
