"""Decoding equals the rules applied span by span; answers come from the original text."""

import collections

import numpy as np
import pytest
from support.goldens import SPM_MODEL, SQUAD_INPUT

from albert_tf.finetuning.tasks.squad import decode as decoding
from albert_tf.finetuning.tasks.squad.read import Paragraph, Question, SquadData, read_squad
from albert_tf.finetuning.tasks.squad.windows import SquadSettings, make_features
from albert_tf.tokenization import AlbertTokenizer

SETTINGS = SquadSettings(
  max_seq_length=64,
  doc_stride=16,
  max_query_length=12,
  n_best_size=6,
  max_answer_length=9,
  start_n_top=3,
  end_n_top=2,
)


@pytest.fixture(scope="module")
def features():
  tokenizer = AlbertTokenizer(spm_model_file=SPM_MODEL)
  data = read_squad(SQUAD_INPUT, version="2.0")
  return make_features(data, tokenizer=tokenizer, settings=SETTINGS)


def text_of(features, window, first, last):
  """The text of places `first` to `last` of a row, and whether the start has most context there; else None."""
  begin, length = int(features.windows.begin[window]), int(features.windows.length[window])
  first, last = first - int(features.text_begins[window]), last - int(features.text_begins[window])
  question = features.data.questions[features.windows.question[window]]
  if not 0 <= first <= last < length or last - first + 1 > SETTINGS.max_answer_length:
    return None
  others = [
    (
      min(begin + first - int(b), int(b + n) - 1 - begin - first) + 0.01 * int(n),
      -int(b),
    )
    for b, n in zip(
      features.windows.begin[features.windows.question == features.windows.question[window]],
      features.windows.length[features.windows.question == features.windows.question[window]],
      strict=True,
    )
    if b <= begin + first < b + n
  ]
  if max(others)[1] != -begin:
    return None
  paragraph = features.paragraphs[question.paragraph]
  context = features.data.paragraphs[question.paragraph].context
  return context[paragraph.starts[begin + first] : paragraph.ends[begin + last]].strip()


def best_of(spans):
  """Distinct texts of (text, start score, end score), best first."""
  kept = []
  for text, start, end in sorted(spans, key=lambda span: -(span[1] + span[2])):
    if text and text not in [other for other, _, _ in kept]:
      kept.append((text, start, end))
  return kept[: SETTINGS.n_best_size] or [("", -1e6, -1e6)]


def test_spans_of_1_1(features):
  rng = np.random.default_rng(0)
  lengths = [len(row["input_ids"]) for row in features.rows]
  logits = {  # A few equal values, and padding beyond the rows that must not matter.
    name: [np.append(np.round(rng.normal(size=n), 1), [9.0] * 5) for n in lengths]
    for name in ("start_logits", "end_logits")
  }
  expected = collections.defaultdict(list)
  for window, length in enumerate(lengths):
    starts, ends = logits["start_logits"][window][:length], logits["end_logits"][window][:length]
    allowed = [
      i
      for i in range(length)
      if features.text_begins[window] <= i < features.text_begins[window] + features.windows.length[window]
    ]
    top_starts = sorted(
      (i for i in allowed if text_of(features, window, i, i) is not None), key=lambda i: -starts[i]
    )
    top_ends = sorted(allowed, key=lambda i: -ends[i])
    for i in top_starts[: SETTINGS.n_best_size]:
      for j in top_ends[: SETTINGS.n_best_size]:
        text = text_of(features, window, i, j)
        if text is not None:
          expected[features.windows.question[window]].append((text, starts[i], ends[j]))
  decoded = decoding.decode(features, logits)
  assert len(decoded) == len(features.data.questions)
  for question, each in enumerate(decoded):
    assert [tuple(candidate) for candidate in each.candidates] == best_of(expected[question])
    assert each.null_score is None


def test_beams_of_2_0(features):
  rng = np.random.default_rng(1)
  count, k, beams = len(features), SETTINGS.start_n_top, SETTINGS.end_n_top
  outputs = {
    "cls_logits": rng.normal(size=count).astype(np.float32),
    "start_top_log_probs": -rng.random((count, k)),
    "start_top_index": rng.integers(0, 64, (count, k)),
    "end_top_log_probs": -rng.random((count, k * beams)),
    "end_top_index": rng.integers(0, 64, (count, k * beams)),
  }
  expected = collections.defaultdict(list)
  for window in range(count):
    for column in range(k * beams):
      start, end = (
        outputs["start_top_index"][window][column // beams],
        outputs["end_top_index"][window][column],
      )
      text = text_of(features, window, int(start), int(end))
      if text is not None:
        scores = (
          outputs["start_top_log_probs"][window][column // beams],
          outputs["end_top_log_probs"][window][column],
        )
        expected[features.windows.question[window]].append((text, *scores))
  decoded = decoding.decode(features, outputs)
  for question, each in enumerate(decoded):
    assert [tuple(candidate) for candidate in each.candidates] == best_of(expected[question])
    assert each.null_score == outputs["cls_logits"][features.windows.question == question].min()
  answers = decoding.answers(features, decoded, threshold=decoded[0].null_score)
  assert answers["q1"] == ""  # At the threshold: no answer.
  assert answers != decoding.answers(features, decoded, threshold=None)
  n_best = decoding.n_best_json(features, decoded)
  assert sum(candidate["probability"] for candidate in n_best["q4"]) == pytest.approx(1.0)


def test_ensemble_of_2_0_by_hand(features):
  """Two models, two starts with one end each: a span that both have, and one that only one has."""
  first = int(features.text_begins[0])

  def model(starts, scores, null):
    return {
      "cls_logits": np.full(len(features), null),
      "start_top_index": np.full((len(features), 2), first) + starts,
      "end_top_index": np.full((len(features), 2), first) + starts,
      "start_top_log_probs": np.tile(scores, (len(features), 1)),
      "end_top_log_probs": np.zeros((len(features), 2)),
    }

  models = [model([1, 2], [-0.5, -1.0], 2.0), model([2, 4], [-0.2, -3.0], 0.0)]
  merged = decoding.merge_beams(models)
  np.testing.assert_array_equal(merged["cls_logits"], 1.0)
  spans = dict(zip(merged["start_top_index"][0] - first, merged["start_top_log_probs"][0], strict=True))
  # The missing ones count as the lowest of that model: -3 for the second, -1 for the first.
  assert spans == pytest.approx({1: (-0.5 - 3.0) / 2, 2: (-1.0 - 0.2) / 2, 4: (-1.0 - 3.0) / 2})
  alone = decoding.decode(features, models[0])
  assert decoding.decode(features, decoding.merge_beams([models[0], models[0]])) == alone
  best = decoding.decode(features, merged)[0].candidates[0]
  assert best.score == pytest.approx(-0.6)


def logits_at(features, first, last):
  """1.1's logits that choose the span of pieces `first` to `last` of the paragraph."""
  length = len(features.rows[0]["input_ids"])
  logits = {name: [np.zeros(length)] for name in ("start_logits", "end_logits")}
  logits["start_logits"][0][features.text_begins[0] + first] = 5.0
  logits["end_logits"][0][features.text_begins[0] + last] = 5.0
  return logits


@pytest.mark.parametrize(
  ("context", "answer"),
  [
    ("The ﬁrst Oﬃce of Flour opened.", "Oﬃce"),
    ("It weighs ½ kg and ¾ LB today.", "½ kg"),
    ("From İstanbul to the İZMİR road.", "İZMİR"),
    ("Cafe\u0301s and nai\u0308ve Fiance\u0301s met.", "Fiance\u0301s"),
    ("One Cafe\u0301 here.", "Cafe\u0301"),  # It ends with what normalisation drops.
    ("A 😀 face made   Two  Spaces here.", "Two  Spaces"),
  ],
)
def test_answers_are_the_original_characters(context, answer):
  tokenizer = AlbertTokenizer(spm_model_file=SPM_MODEL)
  from albert_tf.finetuning.tasks.squad.read import Answer

  question = Question("q", "what?", 0, (Answer(answer, context.index(answer)),))
  data = SquadData("1.1", [Paragraph(context, 0)], [question], True)
  features = make_features(data, tokenizer=tokenizer, settings=SETTINGS)
  decoded = decoding.decode(features, logits_at(features, *features.questions[0].span))
  assert decoding.answers(features, decoded, threshold=None) == {"q": answer}


def test_empty_context_has_the_empty_answer():
  tokenizer = AlbertTokenizer(spm_model_file=SPM_MODEL)
  data = SquadData("1.1", [Paragraph("", 0)], [Question("q", "", 0)], False)
  features = make_features(data, tokenizer=tokenizer, settings=SETTINGS)
  logits = {name: [np.ones(3)] for name in ("start_logits", "end_logits")}
  decoded = decoding.decode(features, logits)
  assert decoded == [decoding.Decoded([decoding.Candidate("", -1e6, -1e6)], None)]
  assert decoding.n_best_json(features, decoded)["q"][0]["probability"] == 1.0
