r"""Shows pretraining records as text, measures them, and checks them.

  python tfrecords_tools/inspect_records.py records/train-00000-of-00004.tfrecord
  python tfrecords_tools/inspect_records.py --validate 'records/*.tfrecord'

The vocabulary is the spm.model or vocab.txt beside the records, or --spm_model_file. Records of
google-research/albert are read too. Exit status 1: --validate found something.
"""

from collections.abc import Sequence
import dataclasses
import itertools
import json
import os
from typing import Any

from albert_tf import commands, files
from albert_tf.settings import Settings, setting
from albert_tf.tokenization import Tokenizer, load_tokenizer
from tfrecords_tools.inspection import Findings, inspect_files, render, views
from tfrecords_tools.pretraining.statistics import torn_words_warning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """What is looked at, and how."""

  validate: bool = setting(False, help="Check every record and file, and exit with 1 if one is wrong.")
  show: int = setting(3, minimum=0, help="Number of instances to print.")
  spm_model_file: str | None = setting(None, help="Vocabulary (.model, .txt); default: beside the records.")
  json: bool = setting(False, help="Print the statistics as one JSON line and nothing else.")


commands.define_flags(Command)


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


def show(paths: Sequence[str], tokenizer: Tokenizer, count: int) -> None:
  """Prints the first sound instances."""
  instances = ((path, *found) for path in paths for found in views(path, tokenizer, Findings(tokenizer)))
  for path, index, view in itertools.islice(instances, count):
    print(
      f"--- {os.path.basename(path)} record {index}: {len(view.ids)} tokens, {len(view.positions)} predictions, "
      f"label {view.order_label}\n{render(view, tokenizer)}"
    )


def main(patterns: Sequence[str]) -> int:
  command = commands.from_flags(Command)
  paths = files.expand_globs(patterns, what="record file")
  tokenizer = load_tokenizer(command.spm_model_file or os.path.dirname(paths[0]) or ".")
  if command.show and not command.json:
    show(paths, tokenizer, command.show)
  found = inspect_files(paths, tokenizer, validate=command.validate)
  summary = found.measurements.summary()
  print(json.dumps(summary, ensure_ascii=False) if command.json else format_statistics(summary))
  for problem in found.problems:
    print(f"problem: {problem}")
  if found.num_problems > len(found.problems):
    print(f"… and {found.num_problems - len(found.problems)} more")
  if command.validate and not found.num_problems:
    print(f"valid: {len(paths)} file(s)")
  return 1 if command.validate and found.num_problems else 0


if __name__ == "__main__":
  commands.run(main, takes_arguments=True)
