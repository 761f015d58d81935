"""Fresh masks, compared with the NumPy version and checked by the rules of stored records."""

import dataclasses

import numpy as np
import pytest
from reference import masking as twin
from support.tiny_records import ids_of
import tensorflow as tf

from albert_tf.pipelines import fresh_masks
from albert_tf.pipelines.fresh_masks import FreshMasks, unmasked
from albert_tf.pretraining.from_records import RecordsDescription
from albert_tf.records import features as names
from albert_tf.records.masking import MaskingConfig

VOCABULARY, CLS, SEP, MASK = 400, 2, 3, 4
RNG = np.random.default_rng(5)
MASKING = MaskingConfig(
  masked_lm_prob=0.15, max_predictions_per_seq=20, ngram_probabilities=(6 / 11, 3 / 11, 2 / 11)
)
WORD_STARTS = RNG.random(VOCABULARY) < 0.7
TOKENIZER = ids_of(VOCABULARY, WORD_STARTS)


def stored_batch(rows, length, predictions, *, full=False):
  """Records as they are stored, and the text that was masked in them."""
  texts = np.zeros([rows, length], np.int32)
  batch = {
    name: np.zeros([rows, length], np.int32) for name in (names.INPUT_MASK, names.SEGMENT_IDS)
  }
  batch |= {name: np.zeros([rows, predictions], np.int32) for name in names.PREDICTION_FEATURES[:2]}
  batch[names.MASKED_LM_WEIGHTS] = np.zeros([rows, predictions], np.float32)
  batch[names.SENTENCE_ORDER_LABELS] = RNG.integers(0, 2, rows).astype(np.int32)
  batch[names.INPUT_IDS] = texts.copy()
  for row, text in enumerate(texts):
    tokens = length if full else int(RNG.integers(5, length + 1))
    middle = tokens - 1  # One segment now and then.
    if RNG.random() < 0.8:
      middle = int(RNG.integers(2, tokens - 2))
    text[:tokens] = RNG.integers(5, VOCABULARY, tokens)
    text[[0, middle, tokens - 1]] = CLS, SEP, SEP
    batch[names.INPUT_MASK][row, :tokens] = 1
    batch[names.SEGMENT_IDS][row, middle + 1 : tokens] = 1
    places = np.flatnonzero(text > MASK)
    places = np.sort(
      RNG.choice(places, min(predictions, len(places), 1 + tokens // 7), replace=False)
    )
    batch[names.MASKED_LM_POSITIONS][row, : len(places)] = places
    batch[names.MASKED_LM_IDS][row, : len(places)] = text[places]
    batch[names.MASKED_LM_WEIGHTS][row, : len(places)] = 1.0
    batch[names.INPUT_IDS][row] = text
    batch[names.INPUT_IDS][row, places] = RNG.choice([MASK, 9], len(places), p=[0.8, 0.2])
  return {name: tf.constant(value) for name, value in batch.items()}, texts


def mask_again(masking, batch, *, epoch=0, first_record=0, seed=7):
  rows = batch[names.INPUT_IDS].shape[0]
  records = tf.range(first_record, first_record + rows, dtype=tf.int64)
  fresh = FreshMasks(masking, TOKENIZER, seed=seed)
  result = fresh(batch, tf.fill([rows], tf.constant(epoch, tf.int64)), records)
  return {name: value.numpy() for name, value in result.items()}


def chosen(result, row):
  used = result[names.MASKED_LM_WEIGHTS][row] > 0
  return result[names.MASKED_LM_POSITIONS][row][used].tolist()


@pytest.mark.parametrize(
  ("length", "predictions", "probability", "ngrams"),
  [
    (40, 12, 0.4, (1.0,)),
    (64, 3, 0.15, (6 / 11, 3 / 11, 2 / 11)),
    (128, 20, 0.15, (6 / 11, 3 / 11, 2 / 11)),
    (24, 24, 0.6, (0.1, 0.1, 0.2, 0.6)),
    (40, 12, 0.4, (0.1, 0.1, 0.2, 0.6)),
  ],
)
def test_masks_are_those_of_one_word_after_the_other(length, predictions, probability, ngrams):
  masking = dataclasses.replace(
    MASKING,
    masked_lm_prob=probability,
    max_predictions_per_seq=predictions,
    ngram_probabilities=ngrams,
  )
  batch, texts = stored_batch(60, length, 7)
  np.testing.assert_array_equal(unmasked(batch), texts)
  result = mask_again(masking, batch)
  keys = fresh_masks.row_keys(7, tf.zeros([60], tf.int64), tf.range(60, dtype=tf.int64), 0)
  words = FreshMasks(masking, TOKENIZER, seed=7).words_of(
    unmasked(batch), batch[names.INPUT_MASK], *fresh_masks.random_draws(keys, length)
  )
  for row, text in enumerate(texts):
    tokens = int(np.sum(batch[names.INPUT_MASK][row]))
    separators = (text[:tokens] == CLS) | (text[:tokens] == SEP)
    groups = twin.word_groups(WORD_STARTS[text[:tokens]], separators, whole_words=True, glue=False)
    group_at = {group[0]: number for number, group in enumerate(groups)}
    middle = np.flatnonzero(text == SEP)[0]
    drawn = [
      (group_at[int(b)], int(n))
      for b, n in zip(words.begins[row], words.lengths[row], strict=True)
      if n
    ]
    wanted = twin.choose(
      groups,
      [group[0] > middle for group in groups],
      [word for word, _ in drawn],
      [n for _, n in drawn],
      min(predictions, max(1, round(tokens * probability))),
      fill=True,
    )
    assert chosen(result, row) == sorted(wanted), row
    # The answers restore the text, and nothing is left in the filling.
    places, unused = sorted(wanted), result[names.MASKED_LM_WEIGHTS][row] == 0
    restored = result[names.INPUT_IDS][row]
    restored[places] = result[names.MASKED_LM_IDS][row][~unused]
    np.testing.assert_array_equal(restored, text)
    assert not result[names.MASKED_LM_IDS][row][unused].any()
    assert not result[names.MASKED_LM_POSITIONS][row][unused].any()


def test_shares_are_those_of_the_paper():
  batch, _ = stored_batch(2000, 128, 20, full=True)
  result = mask_again(MASKING, batch)
  used = result[names.MASKED_LM_WEIGHTS] > 0
  assert used.sum(axis=1).mean() == pytest.approx(round(0.15 * 128), abs=0.1)
  shown = np.take_along_axis(result[names.INPUT_IDS], result[names.MASKED_LM_POSITIONS], axis=1)[
    used
  ]
  answers = result[names.MASKED_LM_IDS][used]
  count = len(answers)  # 38,000: three standard deviations of a share of 0.1 are 0.005.
  assert np.mean(shown == MASK) == pytest.approx(0.8, abs=0.007)
  assert np.mean(shown == answers) == pytest.approx(0.1 + 0.1 / VOCABULARY, abs=0.005)
  random = shown[(shown != MASK) & (shown != answers)]
  assert len(random) / count == pytest.approx(0.1, abs=0.005)
  assert random.min() >= 5  # No special token.
  # Evenly drawn: the 395 other tokens are five parts of 79.
  counts = np.bincount((random - 5) // 79, minlength=5)
  assert np.ptp(counts) < 5 * np.sqrt(len(random) / 5)
  # Every place of a sequence is as likely as any other; [CLS] and the last [SEP] are never.
  per_place = np.bincount(result[names.MASKED_LM_POSITIONS][used], minlength=128)
  assert per_place[0] == per_place[127] == 0
  assert per_place[2:126].std() < 2.5 * np.sqrt(per_place[2:126].mean())


def test_draws_depend_on_seed_epoch_and_record_alone():
  batch, _ = stored_batch(50, 64, 9)
  whole = mask_again(MASKING, batch, epoch=4, first_record=100)
  part = mask_again(
    MASKING, {name: value[20:30] for name, value in batch.items()}, epoch=4, first_record=120
  )
  for name, value in part.items():
    np.testing.assert_array_equal(value, whole[name][20:30])
  for other in (
    mask_again(MASKING, batch, epoch=5, first_record=100),
    mask_again(MASKING, batch, epoch=4, first_record=101),
    mask_again(MASKING, batch, epoch=4, first_record=100, seed=8),
  ):
    same = [chosen(other, row) == chosen(whole, row) for row in range(50)]
    assert np.mean(same) < 0.3  # Of a short row there are few choices.


def test_a_text_that_fills_its_row_without_a_separator_may_be_masked_to_its_end():
  batch, _ = stored_batch(200, 24, 5, full=True)
  ids = unmasked(batch).numpy()
  ids[:, -1] = 7
  result = mask_again(
    MASKING,
    {**batch, names.INPUT_IDS: tf.constant(ids), names.MASKED_LM_WEIGHTS: tf.zeros([200, 5])},
  )
  assert any(23 in chosen(result, row) for row in range(200))


def test_a_drawn_order_is_one_of_the_two_with_its_label():
  batch, texts = stored_batch(400, 24, 3)
  masking = dataclasses.replace(MASKING, redraw_order=True)
  result = mask_again(masking, batch, epoch=2)
  found = unmasked({name: tf.constant(value) for name, value in result.items()}).numpy()
  turned = []
  for row, text in enumerate(texts):
    tokens = int(batch[names.INPUT_MASK][row].numpy().sum())
    segments = batch[names.SEGMENT_IDS][row].numpy().copy()
    begin = tokens - int(segments.sum())
    swapped = bool(
      result[names.SENTENCE_ORDER_LABELS][row] != batch[names.SENTENCE_ORDER_LABELS][row]
    )
    if swapped:  # Each segment with its [SEP].
      a, b = text[1:begin].copy(), text[begin:tokens].copy()
      text[1:tokens] = np.concatenate([b, a])
      segments[1:tokens] = np.repeat([0, 1], [len(b), len(a)])
    np.testing.assert_array_equal(found[row], text)
    np.testing.assert_array_equal(result[names.SEGMENT_IDS][row], segments)
    if begin < tokens - 1:
      turned.append(swapped)
  assert abs(np.mean(turned) - 0.5) < 4 * 0.5 / np.sqrt(len(turned))
  again = mask_again(masking, batch, epoch=3)[names.SENTENCE_ORDER_LABELS]
  assert 0.3 < np.mean(again != result[names.SENTENCE_ORDER_LABELS]) < 0.7


def test_the_order_is_drawn_only_where_labels_say_nothing_else():
  """The label of pure records says whether the segments are swapped; of others it may say more."""

  def redraws_order(*kinds):
    return RecordsDescription(
      input_files=(), eval_input_files=(), tokenizer_path="", vocab_sha256="", vocab_size=VOCABULARY,
      max_seq_length=64, max_predictions_per_seq=9,
      made_with={str(i): kind for i, kind in enumerate(kinds)},
    ).masking(None).redraw_order  # fmt: skip

  pure = {"sentence_pair": "sop", "compatibility": "none"}
  assert redraws_order(pure, pure)
  for other in (
    {"sentence_pair": "nsp"},
    {"sentence_pair": "ordered"},
    {**pure, "compatibility": "original"},
    {},
  ):
    assert not redraws_order(pure, other)
