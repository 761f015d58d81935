"""Pretraining with masks drawn while reading: other masks in every epoch, the same run after an interruption."""

import dataclasses

import numpy as np
import pytest
from support import tiny_run
from support.tiny_pretraining import tiny_settings
from support.tiny_records import VOCAB_SIZE, tiny_config
from support.tiny_step import one_device

from albert_tf.errors import UserError
from albert_tf.pretraining.from_records import describe_records
from albert_tf.pretraining.inputs import checked_input
from albert_tf.pretraining.run import run_pretraining
from albert_tf.pretraining.settings import PretrainingSettings, TrainingRecords
from albert_tf.pretraining.shown_examples import examples_of_update
from albert_tf.records import features as names
from albert_tf.tokenization.masked_text import masked_text


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
  folder = tmp_path_factory.mktemp("fresh")
  tokenizer = tiny_run.tokenizer()
  assert tokenizer.vocab_size >= VOCAB_SIZE
  tokenizer.save_pretrained(str(folder / "tokenizer"))
  plain = tiny_settings(
    folder,
    "whole",
    model=tiny_config(vocab_size=tokenizer.vocab_size),
    tokenizer_path=str(folder / "tokenizer"),
  )
  [path] = plain.input_files
  records = describe_records(TrainingRecords(input_file=path, spm_model_file=plain.tokenizer_path))
  return dataclasses.replace(plain, masking=records.masking(0.4))


def batches(settings, count):
  iterator = checked_input(settings, one_device()).training_iterator(0)
  return [{name: value.numpy() for name, value in next(iterator).items()} for _ in range(count)]


@pytest.mark.slow
def test_training_has_its_own_share_and_evaluation_the_stored_one(settings):
  assert settings.train_predictions == 4 == round(0.4 * settings.max_seq_length)
  assert settings.max_predictions_per_seq == 3
  epochs = batches(settings, 18)  # 70 records in batches of 8: two epochs.
  assert all(batch["masked_lm_ids"].shape == (8, 4) for batch in epochs)
  rows = {}
  for batch in epochs:
    for ids, mask, positions, answers, weights in zip(
      *[batch[name] for name in ("input_ids", "input_mask", *names.PREDICTION_FEATURES)],
      strict=True,
    ):
      used = weights > 0
      assert used.sum() <= max(1, round(0.4 * mask.sum()))
      text = ids.copy()
      text[positions[used]] = answers[used]
      rows.setdefault(text.tobytes(), set()).add(tuple(positions[used]))
  # The text under the masks is the same in both epochs, the masks are often others: few words.
  assert len(rows) == 70
  assert np.mean([len(masks) > 1 for masks in rows.values()]) > 0.3


@pytest.mark.slow  # A run.
def test_the_shown_examples_are_those_that_the_update_trains_on(settings):
  """The tenth update, in the second epoch; a run reads on from its first batch."""
  batch = batches(settings, 10)[9]
  shown = list(examples_of_update(settings, 10))
  assert len(shown) == 3
  for row, text in enumerate(shown):
    used = batch["masked_lm_weights"][row] > 0
    expected = masked_text(
      batch["input_ids"][row][batch["input_mask"][row] > 0],
      batch["masked_lm_positions"][row][used],
      batch["masked_lm_ids"][row][used],
      tiny_run.tokenizer(),
    )
    heading, _, body = text.partition("\n")
    assert body == expected
    assert heading.endswith(
      f"{used.sum()} predictions, label {batch['sentence_order_labels'][row]}"
    )
  # The same records have other masks in the first epoch.
  assert list(examples_of_update(settings, 1)) != shown


def test_examples_cannot_be_shown_without_a_vocabulary(settings):
  stored = dataclasses.replace(settings, masking=None, tokenizer_path="")
  with pytest.raises(UserError, match="--spm_model_file"):
    list(examples_of_update(stored, 1))


@pytest.mark.slow
def test_masking_belongs_to_the_run(settings):
  run_pretraining(settings)
  with pytest.raises(UserError, match=r"Received: .*masking"):
    run_pretraining(dataclasses.replace(settings, masking=None))
  other = dataclasses.replace(settings.masking, vocab_sha256="another")
  with pytest.raises(UserError, match=r"vocab_sha256 .* → another"):
    run_pretraining(dataclasses.replace(settings, masking=other))
  assert PretrainingSettings.from_dict(settings.to_dict(), source="run.json") == settings
  with pytest.raises(UserError, match="--spm_model_file"):
    dataclasses.replace(settings, tokenizer_path="")  # Before anything is written.
  with pytest.raises(UserError, match=r"masked_lm_prob .*0\.0 and .*1\.0"):
    dataclasses.replace(settings.masking, masked_lm_prob=0.0)  # Of records without masks.
