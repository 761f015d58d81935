r"""Shows pretraining records as text, measures them, and checks them.

  python tfrecords_tools/inspect_records.py records/train-00000-of-00004.tfrecord
  python tfrecords_tools/inspect_records.py --validate 'records/*.tfrecord'

The vocabulary is the spm.model or vocab.txt beside the records, or --spm_model_file. Records of
google-research/albert are read too. Exit status 1: --validate found something.
"""

from collections.abc import Sequence
import itertools
import json
import os
from typing import Any

from absl import app, flags

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.tokenization import Tokenizer, load_tokenizer
from tfrecords_tools.inspection.inspector import Inspector, render
from tfrecords_tools.inspection.pool import default_workers, inspect_files
from tfrecords_tools.pretraining.statistics import torn_words_warning

_VALIDATE = flags.DEFINE_bool(
  "validate", False, "Check every record and file, and exit with 1 if one is wrong."
)
_SHOW = flags.DEFINE_integer("show", 3, "Number of instances to print.", lower_bound=0)
_SKIP = flags.DEFINE_integer("skip", 0, "Number of instances to leave out before.", lower_bound=0)
_MAX_RECORDS = flags.DEFINE_integer("max_records", None, "Read at most so many records of each file.")
_SPM_MODEL_FILE = flags.DEFINE_string(
  "spm_model_file", None, "Vocabulary (.model, .txt); default: beside the records."
)
_JSON = flags.DEFINE_bool("json", False, "Print the statistics as one JSON line and nothing else.")
_NUM_WORKERS = flags.DEFINE_integer(
  "num_workers",
  None,
  "Processes; default one for each processor, and one alone for few bytes.",
  lower_bound=1,
)
_MOST_PROBLEMS = 20  # Printed; all are counted.


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
  lines += filter(None, [torn_words_warning(s["torn_fraction"])])
  return "\n".join(lines)


def show(paths: Sequence[str], tokenizer: Tokenizer, *, skip: int, count: int) -> None:
  """Prints the first sound instances, without the `skip` before them."""
  if not count:
    return
  instances = (
    (path, *found)
    for path in paths
    for found in Inspector(tokenizer, path, max_records=_MAX_RECORDS.value).views()
  )
  for path, index, view in itertools.islice(instances, skip, skip + count):
    print(
      f"--- {os.path.basename(path)} record {index}: {len(view.ids)} tokens, {len(view.positions)} predictions, "
      f"label {view.order_label}\n{render(view, tokenizer)}"
    )


def main(argv: Sequence[str]) -> int:
  if len(argv) < 2:
    raise UserError("Name at least one file of records. Received: none. Quoted glob patterns are fine.")
  paths = files.expand_globs(list(argv[1:]), what="record file")
  tokenizer = load_tokenizer(_SPM_MODEL_FILE.value or os.path.dirname(paths[0]) or ".")
  if not _JSON.value:
    show(paths, tokenizer, skip=_SKIP.value, count=_SHOW.value)
  found = inspect_files(
    paths,
    tokenizer,
    validate=_VALIDATE.value,
    max_records=_MAX_RECORDS.value,
    num_workers=_NUM_WORKERS.value or default_workers(paths),
  )
  summary = found.measurements.summary()
  if _VALIDATE.value:
    found.check_proportions()
  print(json.dumps(summary, ensure_ascii=False) if _JSON.value else format_statistics(summary))
  for problem in found.problems[:_MOST_PROBLEMS]:
    print(f"problem: {problem}")
  if found.num_problems > _MOST_PROBLEMS:
    print(f"… and {found.num_problems - _MOST_PROBLEMS} more")
  if _VALIDATE.value and not found.num_problems:
    print(f"valid: {len(paths)} file(s)")
  return 1 if _VALIDATE.value and found.num_problems else 0


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
