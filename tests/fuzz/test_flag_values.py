"""Documented values of flags in any combination: the work ends well, or one sentence names the text."""

import collections
import pathlib
import shutil
from typing import Any

from fuzz import readers
from fuzz.child import Child
from fuzz.fuzzing import fuzz
from hypothesis import strategies as st
import numpy as np
from support import tiny_corpus
from support.commands.documented_values import documented_values

from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.settings import RecordSettings

# Formats that other text has; passes and files that would fill a disk.
_LEFT_OUT = {"input_format": {"mediawiki", "jsonl", "parquet"}, "dupe_factor": {2**31 - 1},
             "num_shards": {99_999}}  # fmt: skip
VALUES: dict[str, list[Any]] = collections.defaultdict(list)
for flag, value in documented_values(RecordSettings, CorpusOptions):
  if value not in _LEFT_OUT.get(flag, ()):
    VALUES[flag].append(value)
VALUES["ngram_distribution"] = ["inverse", "uniform", "reverse"]
VALUES["max_seq_length"] = [5, 8, 64]
VALUES["max_predictions_per_seq"] = [1, 5]
VALUES["num_shards"] += [3]
VALUES["dupe_factor"] += [2]
CHOICES = {name: st.sampled_from(values) for name, values in VALUES.items()}
USUAL = {"max_seq_length": 64, "max_predictions_per_seq": 5}


@fuzz(
  values=st.fixed_dictionaries({}, optional=CHOICES),
  num_documents=st.integers(0, 8),
  seed=st.integers(0, 99),
  cost=2,
)
def test_flag_values(
  child: Child, tmp_path: pathlib.Path, values: dict[str, Any], num_documents: int, seed: int
) -> None:
  shutil.rmtree(tmp_path)
  tmp_path.mkdir()
  (tmp_path / "spm.model").write_bytes(readers.made("spm.model"))
  documents = tiny_corpus.documents(np.random.default_rng(seed), num_documents)
  (tmp_path / "text.txt").write_text(tiny_corpus.as_text(documents))
  child(readers.make_records, tmp_path / "text.txt", USUAL | values)
