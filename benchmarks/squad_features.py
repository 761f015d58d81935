r"""Questions per second of CPU that become features, against the original's algorithm, and two workers against one.

Prints one JSON line. The claim: at least 5 times the original's 45 questions a second and core (recorded on one quiet
core; it needs TensorFlow 1.15 and cannot run here). `original_restated` is its algorithm written out plainly and run
here and now on the first questions; every feature is compared, so both sides do the same. CPU time is compared
because wall time does not repeat on shared machines; the speed-up of workers needs wall time, so a quiet machine.

Example:
  python benchmarks/squad_features.py --predict_file dev-v2.0.json --spm_model_file 30k-clean.model
"""

import itertools
import tempfile
import time
from typing import Any

from absl import flags
import common
import numpy as np
import plain_squad_features

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.pieces import convert
from albert_tf.finetuning.tasks.squad.read import Paragraph, Question, SquadData, read_squad
from albert_tf.finetuning.tasks.squad.windows import SquadFeatures, SquadSettings, make_features
from albert_tf.tokenization import AlbertTokenizer

_PREDICT_FILE = flags.DEFINE_string(
  "predict_file", None, "SQuAD 2.0; default: questions made of this machine's documentation."
)
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file", None, "Vocabulary; default: one of 8,000 tokens is trained."
)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Repetitions; the best of each side counts.")
_PLAIN_QUESTIONS = flags.DEFINE_integer(
  "plain_questions", 100, "Questions for the original's algorithm; 0: none."
)
_WORKER_QUESTIONS = flags.DEFINE_integer(
  "worker_questions", 130_000, "Questions for 2 workers against 1, as many as SQuAD 2.0 has; 0: none."
)

_RECORDED_ORIGINAL = 45.0  # Questions/s/core of the original code.
_SETTINGS = SquadSettings(max_seq_length=384)


def _made_up(directory: str) -> tuple[SquadData, str]:
  """Paragraphs of about 120 words with five questions each, and a text vocabulary."""
  documents = common.installed_documentation(directory, megabytes=3)
  words = " ".join(itertools.chain.from_iterable(documents)).split()
  paragraphs = [
    Paragraph(" ".join(words[begin : begin + 120]), begin // 1200) for begin in range(0, len(words), 120)
  ]
  questions = [
    Question(f"{number}-{part}", " ".join(words[(97 * number + 13 * part) % len(words) :][:10]) + "?", number)
    for number in range(len(paragraphs))
    for part in range(5)
  ]
  return SquadData("2.0", paragraphs, questions, False), common.train_vocabulary(documents, directory)


def _use(features: SquadFeatures) -> None:
  """Everything training and decoding take from the features."""
  for row in features.rows:
    assert row
  _ = features.positions
  _ = features.max_context


def _time_ours(data: SquadData, tokenizer: AlbertTokenizer) -> tuple[float, SquadFeatures]:
  best = float("inf")
  for _ in range(_ROUNDS.value):
    begin = time.process_time()
    features = make_features(data, tokenizer=tokenizer, settings=_SETTINGS)
    _use(features)
    best = min(best, time.process_time() - begin)
  return best, features


def _time_plain(data: SquadData, tokenizer: AlbertTokenizer, ours: SquadFeatures) -> float:
  """CPU seconds of the original's algorithm; its features must be ours."""
  begin = time.process_time()
  theirs = list(plain_squad_features.convert(data, tokenizer, _SETTINGS))
  seconds = time.process_time() - begin
  for index, expected in enumerate(theirs):
    row, length = ours.rows[index], int(ours.windows.length[index])
    for name, fill in (("input_ids", 0), ("input_mask", 0), ("segment_ids", 0), ("p_mask", 1)):
      padded = np.full(_SETTINGS.max_seq_length, fill)
      padded[: len(row[name])] = row[name]
      np.testing.assert_array_equal(padded, expected[name])
    paragraph = ours.paragraphs[ours.data.questions[ours.windows.question[index]].paragraph]
    shown = slice(int(ours.windows.begin[index]), int(ours.windows.begin[index]) + length)
    text = ours.data.paragraphs[ours.data.questions[ours.windows.question[index]].paragraph].context
    for begin, end, first, last in zip(
      paragraph.starts[shown], paragraph.ends[shown], expected["starts"], expected["ends"], strict=True
    ):
      # Of a lone "▁" the original takes the character after it; combining accents go with their letter here.
      assert begin == end or tokenizer.normalize(text[begin:end]) == tokenizer.normalize(
        text[first : last + 1]
      )
    np.testing.assert_array_equal(ours.max_context[index][:length], expected["max_context"])
  return seconds


def _repeated(data: SquadData, count: int) -> SquadData:
  """The file several times over, with about `count` questions."""
  copies = max(1, count // len(data.questions))
  size = len(data.paragraphs)
  questions = [
    question._replace(id=f"{question.id}-{copy}", paragraph=question.paragraph + copy * size)
    for copy in range(copies)
    for question in data.questions
  ]
  return data._replace(paragraphs=data.paragraphs * copies, questions=questions)


def _time_workers(data: SquadData, tokenizer: AlbertTokenizer, num_workers: int) -> float:
  """Wall seconds of a conversion."""
  begin = time.perf_counter()
  convert(data, tokenizer=tokenizer, max_query_length=_SETTINGS.max_query_length, num_workers=num_workers)
  return time.perf_counter() - begin


def benchmark() -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as directory:
    if _PREDICT_FILE.value:
      data = read_squad(_PREDICT_FILE.value, version="2.0")
      if not _SPM_MODEL_FILE.value:
        raise UserError("--predict_file needs a vocabulary. Received: no --spm_model_file. Name one.")
      model = _SPM_MODEL_FILE.value
    else:
      data, model = _made_up(directory)
    tokenizer = AlbertTokenizer(spm_model_file=_SPM_MODEL_FILE.value or model)
  seconds, features = _time_ours(data, tokenizer)
  rate = len(data.questions) / seconds
  result: dict[str, Any] = {
    "questions": len(data.questions),
    "windows": len(features),
    "ours_per_cpu_second": rate,
    "original_recorded_per_second": _RECORDED_ORIGINAL,
    "ratio_to_recorded": rate / _RECORDED_ORIGINAL,
    "claim": 5.0,
  }
  if _PLAIN_QUESTIONS.value:
    step = max(1, len(data.questions) // _PLAIN_QUESTIONS.value)
    some = data.subset(range(0, len(data.questions), step))
    plain = len(some.questions) / _time_plain(some, tokenizer, _time_ours(some, tokenizer)[1])
    result |= {"original_restated_per_cpu_second": plain, "ratio_to_restated": rate / plain}
  if _WORKER_QUESTIONS.value:
    large = _repeated(data, _WORKER_QUESTIONS.value)
    one, two = (_time_workers(large, tokenizer, workers) for workers in (1, 2))
    result |= {
      "worker_questions": len(large.questions),
      "one_worker_seconds": one,
      "two_workers_seconds": two,
      "speed_up": one / two,
    }
  return result


if __name__ == "__main__":
  common.run(benchmark)
