"""Decoding equals the rules applied to each span; answers are parts of the original text."""

import collections
import functools
import json

import numpy as np
import pytest
from support.goldens import SPM_MODEL, SQUAD_INPUT

from albert_tf.finetuning.tasks.squad import answers as decoding
from albert_tf.finetuning.tasks.squad.features import make_features
from albert_tf.finetuning.tasks.squad.read import Question, SquadData, read_squad
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.tokenization import AlbertTokenizer

SETTINGS = SquadSettings(
  max_seq_length=64, doc_stride=16, max_query_length=12, n_best_size=6, max_answer_length=9,
  start_n_top=3, end_n_top=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def features():
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL)
  data = read_squad(SQUAD_INPUT, version="2.0")
  return make_features(data, tokenizer=tokenizer, settings=SETTINGS)


def text_of(features, window, first, last):
  """The text from `first` to `last` of a row if the start has its maximum context there; else None."""
  row, begins, lengths, text_begins = features.windows
  begin, length, text_begin = begins[window], lengths[window], text_begins[window]
  first, last = first - text_begin, last - text_begin
  if not 0 <= first <= last < length or last - first + 1 > SETTINGS.max_answer_length:
    return None
  place = begin + first
  same_question = row == row[window]
  others = [
    (min(place - b, b + n - 1 - place) + 0.01 * n, -b)
    for b, n in zip(begins[same_question], lengths[same_question], strict=True)
    if b <= place < b + n
  ]
  if max(others)[1] != -begin:
    return None
  starts, ends = characters(features, row[window])
  context = features.data.questions[row[window]].context
  return context[starts[place] : ends[begin + last]].strip()


@functools.cache
def characters(features, question):
  """Where the tokens of a question's paragraph begin and end."""
  paragraph = features.paragraphs[question]
  located = features.located
  return located.starts[paragraph].numpy(), located.ends[paragraph].numpy()


def best_of(spans):
  """Distinct texts of (text, start score, end score), best first."""
  kept = []
  for text, start, end in sorted(spans, key=lambda span: -(span[1] + span[2])):
    if text and text not in [other for other, _, _ in kept]:
      kept.append((text, start, end))
  return kept[: SETTINGS.n_best_size] or [("", -1e6, -1e6)]


def test_spans_of_1_1(features):
  rng = np.random.default_rng(0)
  lengths = features.rows.lengths
  logits = {  # A few equal values, and padding beyond the rows that must not matter.
    name: np.stack(
      [np.append(np.round(rng.normal(size=n), 1), [9.0] * (max(lengths) + 5 - n)) for n in lengths]
    )
    for name in ("start_logits", "end_logits")
  }
  expected = collections.defaultdict(list)
  for window, length in enumerate(lengths):
    starts, ends = logits["start_logits"][window][:length], logits["end_logits"][window][:length]
    begin = features.windows.text_begin[window]
    allowed = range(begin, begin + features.windows.length[window])
    may_start = [i for i in allowed if text_of(features, window, i, i) is not None]
    top_starts = sorted(may_start, key=lambda i: -starts[i])
    top_ends = sorted(allowed, key=lambda i: -ends[i])
    for i in top_starts[: SETTINGS.n_best_size]:
      for j in top_ends[: SETTINGS.n_best_size]:
        text = text_of(features, window, i, j)
        if text is not None:
          expected[features.windows.row[window]].append((text, starts[i], ends[j]))
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
    "start_top_index": rng.integers(0, 64, (count, k), np.int32),
    "end_top_log_probs": -rng.random((count, k * beams)),
    "end_top_index": rng.integers(0, 64, (count, k * beams), np.int32),
  }
  expected = collections.defaultdict(list)
  for window in range(count):
    for column in range(k * beams):
      places = {"start": column // beams, "end": column}
      start, end = (int(outputs[f"{side}_top_index"][window][n]) for side, n in places.items())
      start_score, end_score = (
        outputs[f"{side}_top_log_probs"][window][n] for side, n in places.items()
      )
      text = text_of(features, window, start, end)
      if text is not None:
        expected[features.windows.row[window]].append((text, start_score, end_score))
  decoded = decoding.decode(features, outputs)
  for question, each in enumerate(decoded):
    assert [tuple(candidate) for candidate in each.candidates] == best_of(expected[question])
    assert each.null_score == outputs["cls_logits"][features.windows.row == question].min()
  texts = decoding.best_texts(features.data, decoded, threshold=decoded[0].null_score)
  assert texts["q1"] == ""  # At the threshold: no answer.
  assert texts != decoding.best_texts(features.data, decoded, threshold=None)


def test_empty_context_has_the_empty_answer(tmp_path):
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL)
  data = SquadData("1.1", [Question("q", "", "")], False)
  features = make_features(data, tokenizer=tokenizer, settings=SETTINGS)
  logits = {name: [np.ones(3)] for name in ("start_logits", "end_logits")}
  decoded = decoding.decode(features, logits)
  assert decoded == [decoding.Decoded([decoding.Candidate("", -1e6, -1e6)], None)]
  decoding.write_answers(str(tmp_path), data, decoded, threshold=None)
  assert decoding.read_answers(str(tmp_path), data) == decoded
  (written,) = json.loads((tmp_path / "nbest_predictions.json").read_text())["q"]
  assert written == {"text": "", "probability": 1.0, "start_log_prob": -1e6, "end_log_prob": -1e6}
