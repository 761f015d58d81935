r"""What a corpus comes to: tokens, instances, bytes of the records, processor time, disk while they are sorted.

Makes the records of some text at length 512 in both layouts, with 20 and 77 predictions, and scales what was measured
to larger corpora: everything is proportional to the text, and but for the tokenization to the passes. Prints the table
of docs/data.md and one JSON line, with the estimate by which the number of files is chosen beside what was measured.

Example:
  python benchmarks/data_sizing.py --input_format=auto --spm_model_file=../shared/data/vocab/30k-clean.model \
    --input='../shared/data/corpora/novels/*,../shared/data/corpora/wikiextractor/wiki_0*'
"""

import itertools
import os
import tempfile
from typing import Any, NamedTuple

from absl import flags
import common

from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.pretraining.settings import RECORD_LAYOUTS, RecordSettings
from tfrecords_tools.pretraining.sizing import expected_size

_CORPUS = common.define_corpus_flags()
_MEGABYTES = flags.DEFINE_float("megabytes", 10.0, "Text to measure with.")
_PREDICTIONS = (20, 77)
_TEXT_GB = (1, 16, 160)
_DUPE_FACTORS = (1, 10, 40)
_MANY = 4  # Passes of the second run that is timed.


class _Made(NamedTuple):
  """What one run made, of all its passes."""

  tokens: int
  instances: int
  record_bytes: int
  cpu_seconds: float


def _make(text: str, tokenizer: AlbertTokenizer, settings: RecordSettings) -> _Made:
  manifest, seconds = common.make_records(text, tokenizer=tokenizer, settings=settings)
  train = manifest.statistics["train"]
  return _Made(train["tokens"], train["instances"], sum(file.num_bytes for file in manifest.files), seconds)


def _settings(layout: str, predictions: int, dupe_factor: int = 1) -> RecordSettings:
  return RecordSettings(
    record_layout=layout,
    max_predictions_per_seq=predictions,
    dupe_factor=dupe_factor,
    eval_fraction=0.0,
  )


def _size(num_bytes: float) -> str:
  return (
    f"{num_bytes / 1e12:.2g} TB"
    if num_bytes >= 1e12
    else f"{num_bytes / 1e9:.{1 if num_bytes < 1e10 else 0}f} GB"
  )


def _print_table(made: dict[tuple[str, int], _Made], many: _Made, text_bytes: int) -> None:
  one = made["example", _PREDICTIONS[0]]
  of_pass = (many.cpu_seconds - one.cpu_seconds) / (_MANY - 1)
  once = max(0.0, one.cpu_seconds - of_pass)
  print(
    "| text | tokens | passes | instances | example, P 20 · 77 | compact, P 20 · 77 | core-hours | disk while sorting |"
  )
  print("|---|---|---|---|---|---|---|---|")
  for gigabytes, dupe in itertools.product(_TEXT_GB, _DUPE_FACTORS):
    scale = gigabytes * 1e9 / text_bytes
    sizes = {kind: each.record_bytes * scale * dupe for kind, each in made.items()}
    columns = [
      f"{gigabytes} GB",
      f"{one.tokens * scale / 1e9:.2g} billion",
      str(dupe),
      f"{one.instances * scale * dupe / 1e6:,.1f} million",
      *(" · ".join(_size(sizes[layout, p]) for p in _PREDICTIONS) for layout in RECORD_LAYOUTS),
      f"{(once + of_pass * dupe) * scale / 3600:.1f}",
      _size(2 * sizes["example", _PREDICTIONS[0]]),
    ]
    print(f"| {' | '.join(columns)} |")


def benchmark() -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as directory:
    documents, model = _CORPUS(directory, megabytes=_MEGABYTES.value)
    text = os.path.join(directory, "text.txt")
    common.write_lines(documents, text)
    tokenizer = AlbertTokenizer(spm_model_file=model)
    text_bytes = os.path.getsize(text)
    kinds = [(layout, predictions) for layout in RECORD_LAYOUTS for predictions in _PREDICTIONS]
    _make(text, tokenizer, _settings(*kinds[0]))  # What is only slow once, before anything is timed.
    made = {kind: _make(text, tokenizer, _settings(*kind)) for kind in kinds}
    many = _make(text, tokenizer, _settings(*kinds[0], _MANY))
  _print_table(made, many, text_bytes)
  return {
    "text_bytes": text_bytes,
    "vocab_size": tokenizer.vocab_size,
    "bytes_per_token": text_bytes / made[kinds[0]].tokens,
    "bytes_per_record": {
      f"{layout}, {p}": each.record_bytes / each.instances for (layout, p), each in made.items()
    },
    "expected_over_made": {
      f"{layout}, {p}": expected_size(text_bytes, _settings(layout, p)).record_bytes / each.record_bytes
      for (layout, p), each in made.items()
    },
    "cpu_seconds": {1: made[kinds[0]].cpu_seconds, _MANY: many.cpu_seconds},
  }


if __name__ == "__main__":
  common.run(benchmark)
