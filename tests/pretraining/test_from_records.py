"""Settings of a run that come from its records, for commands and for Python."""

import pathlib

import pytest
from support.tiny_pretraining import tiny_settings
from support.tiny_records import SPEC, write_train_and_eval

from albert_tf.configs import ModelChoice
from albert_tf.errors import UserError
from albert_tf.pretraining.from_records import settings_from_records
from albert_tf.pretraining.settings import TrainingRecords
from albert_tf.records.tfrecord import frame_record


def test_records_without_a_manifest_say_their_lengths(tmp_path):
  expected = tiny_settings(tmp_path, "run")
  (tmp_path / "config.json").write_text(expected.model.to_json_string())
  found = settings_from_records(
    TrainingRecords(
      input_file=f"{tmp_path}/train-*", eval_input_file=f"{tmp_path}/eval-*", sentence_loss="on"
    ),
    model=ModelChoice(albert_config_file=str(tmp_path / "config.json")),
    optimizer=expected.optimizer,
    step=expected.step,
    output_dir=expected.output_dir,
    eval_batch_size=4,
    iterations_per_loop=2,
    save_checkpoints_steps=4,
  )
  assert found == expected


def test_the_page_as_written(tmp_path, monkeypatch):
  """It makes the settings of a run; the run itself is `test_pretraining.py`'s."""
  page = pathlib.Path(__file__).parents[2] / "docs/training.md"
  block = page.read_text().partition("```python\n")[2].partition("```")[0]
  (tmp_path / "records").mkdir()
  write_train_and_eval(tmp_path / "records")
  monkeypatch.chdir(tmp_path)
  seen = []
  monkeypatch.setattr("albert_tf.pretraining.run.run_pretraining", seen.append)
  exec(block, {})
  [settings] = seen
  assert settings.record_rules.spec == SPEC
  assert settings.eval_input_files == ("records/eval-0.tfrecord",)


def test_a_file_of_other_records(tmp_path):
  path = tmp_path / "other.tfrecord"
  path.write_bytes(frame_record(b""))
  with pytest.raises(UserError, match=rf"{path}, record 0, with 0 and 0"):
    settings_from_records(
      TrainingRecords(input_file=str(path)),
      model=ModelChoice(size="tiny"),
      optimizer=None,
      step=None,
    )


def test_a_share_of_masks_needs_fresh_ones():
  with pytest.raises(UserError, match=r"0\.3 with --masking=stored.*--masking=fresh"):
    TrainingRecords(input_file="records/train-*", masked_lm_prob=0.3)
