"""Windows, alignment and positions equal the original's, on every recorded feature; nothing of real files is lost."""

import numpy as np
import pytest
from support.goldens import SPM_MODEL, SQUAD_INPUT, golden_rows

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.pieces import answer_span
from albert_tf.finetuning.tasks.squad.read import Answer, Paragraph, Question, SquadData, read_squad
from albert_tf.finetuning.tasks.squad.windows import SquadSettings, make_features, make_windows
from albert_tf.tokenization import AlbertTokenizer

GOLDEN = SquadSettings(max_seq_length=64, doc_stride=16, max_query_length=12)


@pytest.fixture(scope="module")
def golden():
  """Recorded features, and ours. The original's tokenizer is `nostrip` (its digit-comma rule)."""
  tokenizer = AlbertTokenizer(spm_model_file=SPM_MODEL, digit_comma="nostrip")
  data = read_squad(SQUAD_INPUT, version="2.0", require_answers=True)
  return golden_rows("squad_features"), make_features(data, tokenizer=tokenizer, settings=GOLDEN)


@pytest.fixture(scope="module")
def tokenizer():
  return AlbertTokenizer(spm_model_file=SPM_MODEL)


def one_paragraph(context, *questions, version="2.0"):
  """Data of one paragraph; a question is (text, answer or None)."""
  rows = [
    Question(
      str(n), text, 0, () if answer is None else (Answer(answer, context.find(answer)),), answer is None
    )
    for n, (text, answer) in enumerate(questions)
  ]
  return SquadData(version, [Paragraph(context, 0)], rows, True)


def test_rows_equal_the_originals(golden):
  recorded, features = golden
  assert len(features) == len(recorded["eval"]) == len(recorded["train"])
  length = GOLDEN.max_seq_length
  for row, expected in zip(features.rows, recorded["train"], strict=True):
    for name, fill in (("input_ids", 0), ("input_mask", 0), ("segment_ids", 0), ("p_mask", 1)):
      padded = np.full(length, fill)
      padded[: len(row[name])] = row[name]
      assert padded.tolist() == expected[name], (name, expected["unique_id"])
    assert len(row["input_ids"]) == expected["paragraph_len"]


def test_positions_equal_the_originals(golden):
  recorded, features = golden
  keys = ("start_position", "end_position", "is_impossible")
  expected = [[int(each[key]) for each in recorded["train"]] for key in keys]
  assert [column.tolist() for column in features.positions] == expected


def test_alignment_and_context_equal_the_originals(golden):
  recorded, features = golden
  numbers = [n for count in np.bincount(features.windows.question) for n in range(count)]
  for index, (question, number) in enumerate(zip(features.windows.question, numbers, strict=True)):
    paragraph = features.paragraphs[features.data.questions[question].paragraph]
    expected = recorded["eval"][index]
    assert (expected["example_index"], expected["doc_span_index"]) == (question, number)
    begin, length = int(features.windows.begin[index]), int(features.windows.length[index])
    context = features.data.paragraphs[features.data.questions[question].paragraph].context
    shown = slice(begin, begin + length)
    ours = [context[s:e] for s, e in zip(paragraph.starts[shown], paragraph.ends[shown], strict=True)]
    # The original gives the zero-width space, which SentencePiece drops, to a lone "▁".
    theirs = [
      context[first : last + 1].strip(" \u200b")
      for first, last in zip(
        expected["tok_start_to_orig_index"], expected["tok_end_to_orig_index"], strict=True
      )
    ]
    # The original leaves a combining accent out.
    assert [text.removesuffix("\u0301") for text in ours] == theirs
    first = int(features.text_begins[index])
    best = {str(first + place): bool(features.max_context[index, place]) for place in range(length)}
    assert best == expected["token_is_max_context"]


def test_every_question_of_real_files_converts(shared_dir):
  tokenizer = AlbertTokenizer(spm_model_file=str(shared_dir / "data/vocab/30k-clean.model"))
  for name, count in (("train-subset-v2.0.json", 4719), ("dev-half-v2.0.json", 6078)):
    data = read_squad(str(shared_dir / "data/squad" / name), version="2.0", require_answers=True)
    features = make_features(data, tokenizer=tokenizer, settings=SquadSettings())
    assert len(data.questions) == count
    assert set(features.windows.question) == set(range(count))
    assert {question.answer for question in features.questions} == {"found", "none"}
    starts, _, lacking = features.positions
    answered = set(features.windows.question[lacking == 0])
    assert answered == {n for n, question in enumerate(data.questions) if not question.is_impossible}
    assert all(starts[lacking == 0] >= features.text_begins[lacking == 0])
    # Every gold answer round-trips: the span's characters, cut from the original text, contain it.
    for question, converted in zip(data.questions, features.questions, strict=True):
      if not question.is_impossible:
        context = data.paragraphs[question.paragraph].context
        first, last = converted.span
        paragraph = features.paragraphs[question.paragraph]
        begin, end = int(paragraph.starts[first]), int(paragraph.ends[last])
        answer = question.answers[0]
        assert begin <= answer.start
        assert end >= answer.start + len(answer.text), (context[begin:end], answer)


def test_workers_change_nothing(golden):
  _, features = golden
  tokenizer = AlbertTokenizer(spm_model_file=SPM_MODEL, digit_comma="nostrip")
  data = features.data
  many = SquadData(
    data.version,
    data.paragraphs * 20,
    [
      question._replace(id=f"{question.id}-{copy}", paragraph=question.paragraph + 3 * copy)
      for copy in range(20)
      for question in reversed(data.questions)
    ],
    True,
  )
  one, two = (
    make_features(many, tokenizer=tokenizer, settings=GOLDEN, num_workers=workers) for workers in (1, 2)
  )
  for ours, theirs in zip(one.rows, two.rows, strict=True):
    np.testing.assert_equal(ours, theirs)
  np.testing.assert_equal(one.positions, two.positions)


@pytest.mark.parametrize(
  ("context", "answer"),
  [
    ("The ﬁrst oﬃce of ﬂour opened.", "oﬃce"),
    ("It weighs ½ kg and ¾ lb; the √ of ⅔ is odd.", "¾ lb"),
    ("İstanbul and the İzmir road; İİİİ end.", "İzmir road"),
    ("Cafe\u0301s and nai\u0308ve fiance\u0301s met in Zu\u0308rich.", "fiance\u0301s"),
    ("A 😀 face, a 👩‍👩‍👧 family, and a 🇫🇷 flag.", "👩‍👩‍👧 family"),
    ("  Leading,\t\ttabs\n\nand   spaces   end  ", "tabs\n\nand"),
    ("대한민국의 수도는 서울특별시이다.", "서울특별시"),
    ("東京 is 日本's capital №1 ℡ ㍿ ﷺ.", "日本"),
    ("Ⅷ ① ㎏ ＡＢＣ ﬀ", "ＡＢＣ"),
    ("\u200bzero\u200bwidth \u00a0no-break\u00a0 text", "no-break"),
  ],
)
def test_answers_of_any_unicode_round_trip(tokenizer, context, answer):
  data = one_paragraph(context, ("what?", answer))
  features = make_features(data, tokenizer=tokenizer, settings=SquadSettings())
  first, last = features.questions[0].span
  paragraph = features.paragraphs[0]
  cut = context[paragraph.starts[first] : paragraph.ends[last]]
  assert answer in cut
  assert len(cut.strip()) <= len(answer) + 4  # Beside the answer at most a few characters of its pieces.
  assert features.positions[2].tolist() == [0]


AWKWARD = [
  "ﬁ", "½", "İ", "e\u0301", "😀", "👩‍👩‍👧", "서울", "東京", "  ", "\u00a0", "№", "Å", "ﷺ", "Ⅷ", "...", "1,990,",
  "(fox)", "naïve", "\n", "\t", "—", "“q”", "ß", "Ω", "क्षि", "が", "①", "ｶﾞ", "ǆ", "ﬀ", "x\u200by",
]  # fmt: skip


def test_any_part_of_any_text_round_trips(tokenizer):
  """Parts of random texts, from plain to absurd, are contained in what their pieces cut from the text."""
  rng = np.random.default_rng(0)
  for share in np.repeat([0.05, 0.3, 1.0], 200):
    words = [
      str(rng.choice(AWKWARD if rng.random() < share else ["the", "brown", "city", "was", "1990,"]))
      + (" " if rng.random() < 0.7 else "")
      for _ in range(rng.integers(3, 30))
    ]
    context = "".join(words)
    starts, ends = np.array(tokenizer.encode_with_offsets(context)[1]).T
    visible = [i for i, char in enumerate(context) if tokenizer.normalize(char).strip("\u200b\u200d")]
    start = int(rng.choice(visible))
    end = int(rng.choice([i for i in visible if start <= i < start + 20]))
    first, last = answer_span(starts, ends, start, end + 1)
    assert context[start : end + 1] in context[starts[first] : ends[last]], context


def test_an_answer_begins_behind_a_space_mark_without_characters():
  """Of "▁", "A", "▁b" in "A b"; and of a character that became three pieces."""
  assert answer_span([0, 0, 2], [0, 1, 3], 0, 1) == (1, 1)
  assert answer_span([0, 0, 2], [0, 1, 3], 0, 3) == (1, 2)
  assert answer_span([0, 0, 0, 2], [1, 1, 1, 4], 0, 1) == (0, 2)


def test_empty_and_long_texts(tokenizer):
  settings = SquadSettings(max_seq_length=40, max_query_length=8, doc_stride=10)
  data = SquadData(
    "2.0",
    [Paragraph("", 0), Paragraph("word " * 5000, 0)],
    [
      Question("a", "Who?", 0, (), True),
      Question("b", "", 1, (), True),
      Question("c", "why " * 50, 1, (Answer("word", 20),)),
    ],
    True,
  )
  features = make_features(data, tokenizer=tokenizer, settings=settings)
  assert features.rows[0]["input_ids"].tolist() == [2, *tokenizer.encode("Who?"), 3, 3]
  assert features.rows[1]["input_ids"][:2].tolist() == [2, 3]  # An empty question.
  assert max(len(row["input_ids"]) for row in features.rows) == 40
  for question in (1, 2):  # The windows cover the whole text, and each piece has one best window.
    chosen = features.windows.question == question
    covered = np.zeros(len(features.paragraphs[1].ids), int)
    places = np.flatnonzero(chosen)
    for row, index in zip(features.max_context[chosen], places, strict=True):
      begin, length = features.windows.begin[index], features.windows.length[index]
      covered[begin : begin + length] += row[:length]
    assert covered.tolist() == [1] * len(covered)


def test_windows_stop_where_the_text_ends():
  settings = SquadSettings(max_seq_length=23, max_query_length=10, doc_stride=4)
  windows = make_windows(
    text_lengths=np.array([0, 10, 11, 14, 15]), query_lengths=np.full(5, 10), settings=settings
  )
  assert windows.question.tolist() == [0, 1, 2, 2, 3, 3, 4, 4, 4]
  assert windows.begin.tolist() == [0, 0, 0, 4, 0, 4, 0, 4, 8]
  assert windows.length.tolist() == [0, 10, 10, 7, 10, 10, 10, 10, 7]


def test_moved_and_missing_answers(tokenizer):
  context = "Python is big. Python is old."
  answers = [Answer("Python", 13), Answer("London", 0), Answer("old.", 25), Answer(" ", 5), Answer("big", -4)]
  questions = [Question(str(n), "what?", 0, (answer,)) for n, answer in enumerate(answers)]
  data = SquadData("1.1", [Paragraph(context, 0)], questions, True)
  features = make_features(data, tokenizer=tokenizer, settings=SquadSettings())
  assert [question.answer for question in features.questions] == [
    "moved",
    "missing",
    "found",
    "missing",
    "moved",
  ]
  pieces = tokenizer.encode_pieces(context)
  first, last = features.questions[0].span
  assert (first, last) == (pieces.index("▁python", 1), pieces.index("▁python", 1))  # The nearer of the two.
  assert "p_mask" not in features.rows[0]


def test_the_question_must_leave_room():
  with pytest.raises(UserError, match="max_seq_length must be more than max_query_length"):
    SquadSettings(max_seq_length=64, max_query_length=64)
  with pytest.raises(UserError, match="doc_stride must be at least 1"):
    SquadSettings(doc_stride=0)
  with pytest.raises(UserError, match="must be at most 32"):
    SquadSettings(start_n_top=40)
