r"""Shows pretraining records as text, measures them, and checks them.

  python tfrecords_tools/inspect_records.py records/train-00000-of-00004.tfrecord
  python tfrecords_tools/inspect_records.py --validate 'records/*.tfrecord'

The vocabulary is the spm.model beside the records, or --spm_model_file. Records of google-research/albert are
read too. Exit status 1: --validate found something.
"""

from collections.abc import Iterator, Sequence
import json
import os
from typing import Any, NamedTuple

from absl import app, flags
import google_crc32c

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.records import Manifest, PretrainingSpec, compact, find_manifest, read_records
from albert_tf.records import features as names
from albert_tf.records.decode import decode_example, decode_record
from albert_tf.records.shard_index import index_problem
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.pretraining.inspection import Measurements, Validator, View, view_instance
from tfrecords_tools.pretraining.masking import prediction_budget
from tfrecords_tools.pretraining.proportions import proportion_problems

_VALIDATE = flags.DEFINE_bool(
  "validate", False, "Check every record and file, and exit with 1 if one is wrong."
)
_SHOW = flags.DEFINE_integer("show", 3, "Number of instances to print.", lower_bound=0)
_SKIP = flags.DEFINE_integer("skip", 0, "Number of instances to leave out before.", lower_bound=0)
_MAX_RECORDS = flags.DEFINE_integer("max_records", None, "Read at most so many records of each file.")
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file", None, "SentencePiece model; default beside the records."
)
_JSON = flags.DEFINE_bool("json", False, "Print the statistics as one JSON line and nothing else.")
_MOST_PROBLEMS = 20  # Printed; all are counted.


class Problem(NamedTuple):
  """Something wrong: with a record, or with the file where `record` is None."""

  path: str
  record: int | None
  what: str

  def __str__(self) -> str:
    where = self.path if self.record is None else f"{self.path}, record {self.record}"
    return f"{where}: {self.what}"


def render(view: View, tokenizer: AlbertTokenizer) -> str:
  """The instance as text; an answer is {answer} where [MASK] is shown, {answer ✓} where kept, {shown → answer}."""
  answers = dict(zip(view.positions.tolist(), view.labels.tolist(), strict=True))
  words = []
  for position, piece_id in enumerate(view.ids.tolist()):
    piece = tokenizer.id_to_piece(piece_id)
    if position in answers:
      answer = tokenizer.id_to_piece(answers[position])
      space = " " if answer.startswith("▁") else ""
      answer = answer.removeprefix("▁")
      if piece_id == tokenizer.mask_id:
        words.append(f"{space}{{{answer}}}")
      elif piece_id == answers[position]:
        words.append(f"{space}{{{answer} ✓}}")
      else:
        words.append(f"{space}{{{piece.removeprefix('▁')} → {answer}}}")
    elif piece_id in (tokenizer.cls_id, tokenizer.sep_id):
      words.append(f" {piece}\n" if piece_id == tokenizer.sep_id else piece)
    else:
      words.append(piece.replace("▁", " "))
  return "".join(words).strip("\n")


def check_file(path: str, manifest: Manifest | None) -> Iterator[Problem]:
  """What is wrong with the file as a whole, compared with its index and its manifest."""
  try:
    if what := index_problem(path):
      yield Problem(path, None, what)
  except UserError:
    pass  # Reading the records says it.
  if manifest is None:
    return
  entry = {file.name: file for file in manifest.files}.get(os.path.basename(path))
  if entry is None:
    yield Problem(path, None, "the manifest does not list it")
    return
  crc = size = 0
  with files.open_binary(path) as stream:
    while chunk := stream.read(1 << 20):
      crc = google_crc32c.extend(crc, chunk)
      size += len(chunk)
  if size != entry.num_bytes:
    yield Problem(path, None, f"it has {size} bytes and not {entry.num_bytes}, as the manifest says")
  elif f"{crc:08x}" != entry.crc32c:
    yield Problem(path, None, f"its CRC32C is {crc:08x} and not {entry.crc32c}, as the manifest says")


def _budget_problem(view: View, manifest: Manifest | None) -> list[str]:
  if manifest is None:
    return []
  budget = prediction_budget(
    len(view.ids),
    masked_lm_prob=manifest.settings["masked_lm_prob"],
    max_predictions=manifest.max_predictions_per_seq,
  )
  if len(view.positions) > budget:
    return [f"{len(view.positions)} pieces are masked and not {budget}"]
  return []


def _make_validator(tokenizer: AlbertTokenizer, manifest: Manifest | None, first: bytes) -> Validator:
  """Lengths and rules from the manifest; of records without one, lengths from the first record."""
  if manifest is not None:
    return Validator(
      tokenizer,
      spec=manifest.spec,
      whole_words=manifest.settings["whole_word_mask"],
      single_segment=manifest.sentence_pair == "none",
    )
  if compact.word_bytes_of(first):
    raise UserError(
      "Compact records do not tell their lengths. Received: no manifest.json beside them. Copy it there."
    )
  features = decode_example(first)
  lengths = [len(features.get(name, ())) for name in (names.INPUT_IDS, names.MASKED_LM_IDS)]
  return Validator(tokenizer, spec=PretrainingSpec(*lengths))


class Inspector:
  """Goes through files: shows, measures, and notes what is wrong."""

  def __init__(self, tokenizer: AlbertTokenizer, *, show: int, skip: int):
    self._tokenizer = tokenizer
    self._show = show
    self._skip = skip
    self._seen = 0
    self.measurements = Measurements(tokenizer)
    self.problems: list[Problem] = []

  def inspect(self, path: str, manifest: Manifest | None, *, max_records: int | None = None) -> None:
    """Reads one file to its end, or to the first record that cannot be read."""
    validator = None
    index = -1
    try:
      for index, record in enumerate(read_records(path)):
        if max_records is not None and index >= max_records:
          return
        validator = validator or _make_validator(self._tokenizer, manifest, record)
        features = decode_record(record, validator.spec)
        if compact.word_bytes_of(record):
          validator.add_boundary(features)
        wrong = validator.problems(features)
        if not wrong:
          view = view_instance(features)
          wrong = _budget_problem(view, manifest)
          self.measurements.add(view)
          self._print(view, path, index)
        self.problems += [Problem(path, index, what) for what in wrong]
    except UserError as error:
      self.problems.append(Problem(path, None, str(error)))
    if manifest is not None and max_records is None:
      entry = {file.name: file for file in manifest.files}.get(os.path.basename(path))
      if entry and index + 1 != entry.num_records:
        self.problems.append(Problem(path, None, f"{index + 1} records could be read of {entry.num_records}"))

  def _print(self, view: View, path: str, index: int) -> None:
    self._seen += 1
    if self._skip < self._seen <= self._skip + self._show:
      print(
        f"--- {os.path.basename(path)} record {index}: {len(view.ids)} tokens, {len(view.positions)} "
        f"predictions, label {view.order_label}"
      )
      print(render(view, self._tokenizer))


def format_statistics(summary: dict[str, Any]) -> str:
  """The summary for a person."""
  if not summary:
    return "no instance could be read"
  s = summary
  lengths = " ".join(f"{name}%:{value:.0f}" for name, value in s["seq_len_pct"].items())
  lines = [
    f"instances            {s['instances']:,}",
    f"length               mean {s['seq_len_mean']:.1f}; {lengths}",
    f"segment A            mean {s['segA_len_mean']:.1f}, with [CLS] and [SEP]",
    f"label 1              {s['label1_fraction']:.4f}",
    f"predictions          mean {s['predictions_mean']:.2f}, {s['predictions_min']} to {s['predictions_max']}",
    f"masked/kept/random   {s['masked']:.4f} / {s['kept']:.4f} / {s['random']:.4f}",
    f"word starts          {s['word_start_fraction']:.4f} of the tokens",
  ]
  for name, label in (("run_words", "masked runs, words  "), ("run_pieces", "masked runs, pieces ")):
    shares = " ".join(f"{length}:{share:.3f}" for length, share in list(s[name].items())[:6])
    lines.append(f"{label} {shares}")
  return "\n".join(lines)


def _load_tokenizer(paths: Sequence[str]) -> AlbertTokenizer:
  source = _SPM_MODEL_FILE.value or os.path.dirname(paths[0]) or "."
  return AlbertTokenizer.from_pretrained(source)


def _problems_of_all(inspector: Inspector, manifests: dict[str, Manifest | None]) -> None:
  """Shares over all files of a manifest's settings."""
  settings = [manifest.settings for manifest in manifests.values() if manifest is not None]
  balanced = bool(settings) and all(
    each["sentence_pair"] == "sop" and each["compatibility"] == "none" for each in settings
  )
  masked = all(each["masked_lm_prob"] > 0 for each in settings)
  counts = inspector.measurements.counts()
  for what in proportion_problems(
    counts, vocab_size=len(inspector.measurements.answers), balanced_labels=balanced, masked=masked
  ):
    inspector.problems.append(Problem("all files", None, what))


def main(argv: Sequence[str]) -> int:
  if len(argv) < 2:
    raise UserError("Name at least one file of records. Received: none. Quoted glob patterns are fine.")
  paths = files.expand_globs(list(argv[1:]), what="record file")
  tokenizer = _load_tokenizer(paths)
  inspector = Inspector(tokenizer, show=0 if _JSON.value else _SHOW.value, skip=_SKIP.value)
  manifests: dict[str, Manifest | None] = {}
  for path in paths:
    directory = os.path.dirname(path)
    if directory not in manifests:
      manifests[directory] = find_manifest([path])
      if manifests[directory] is not None:
        manifests[directory].check(  # type: ignore[union-attr]
          vocab_size=tokenizer.vocab_size, vocab_sha256=tokenizer.model_sha256, source=path
        )
    manifest = manifests[directory]
    if _VALIDATE.value and _MAX_RECORDS.value is None:
      inspector.problems += check_file(path, manifest)
    inspector.inspect(path, manifest, max_records=_MAX_RECORDS.value)
  summary = inspector.measurements.summary()
  if _VALIDATE.value and summary:
    _problems_of_all(inspector, manifests)
  print(json.dumps(summary, ensure_ascii=False) if _JSON.value else format_statistics(summary))
  return _report(inspector.problems, len(paths))


def _report(problems: list[Problem], num_files: int) -> int:
  for problem in problems[:_MOST_PROBLEMS]:
    print(f"problem: {problem}")
  if len(problems) > _MOST_PROBLEMS:
    print(f"… and {len(problems) - _MOST_PROBLEMS} more")
  if _VALIDATE.value and not problems:
    print(f"valid: {num_files} file(s)")
  return 1 if _VALIDATE.value and problems else 0


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
