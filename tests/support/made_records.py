"""Records made for a test, with small blocks, and what is then in the directory."""

from collections.abc import Callable, Sequence
import pathlib
from typing import Any

import pytest

from albert_tf.records import Manifest
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining import job, local
from tfrecords_tools.pretraining.create import create_records
from tfrecords_tools.pretraining.local import make_locally


def make(
  corpus: Sequence[str],
  output_dir: str | pathlib.Path,
  tokenizer: Tokenizer,
  *,
  block_bytes: int = 2000,
  runner: Any = make_locally,
  notice: Callable[[str], None] = lambda text: None,
  **more: Any,
) -> Manifest:
  """`create_records` of files of lines, in so small blocks that there are many; in this process by default."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(job, "SMALLEST_BLOCK", block_bytes)
    patch.setattr(local, "_WORTH_PROCESSES", 0)  # A runner of several workers starts them.
    work = job.make_job(
      corpus,
      str(output_dir),
      tokenizer=tokenizer,
      options=CorpusOptions(input_format="lines"),
      **more,
    )
    return create_records(work, runner, notice=notice)


def contents(directory: str | pathlib.Path) -> dict[str, bytes]:
  """Path below the directory → bytes, of all files."""
  found = sorted(path for path in pathlib.Path(directory).rglob("*") if path.is_file())
  return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def flags(
  corpus: Sequence[str], model: str, directory: str | pathlib.Path, **more: Any
) -> list[str]:
  """Of the command that makes records."""
  values = {
    "input": ",".join(corpus),
    "input_format": "lines",
    "spm_model_file": model,
    "output_dir": directory,
    "max_seq_length": 64,
    "max_predictions_per_seq": 8,
    "dupe_factor": 2,
    "num_shards": 2,
    "eval_fraction": 0.1,
    **more,
  }
  return [f"--{name}={value}" for name, value in values.items()]
