r"""Makes pretraining records (TFRecords) from text: n-gram masked-LM and sentence order instances.

  python tfrecords_tools/create_pretraining_data.py --input 'corpus/*.txt' \
      --spm_model_file 30k.model --output_dir records

The output directory gets train-*.tfrecord, eval-*.tfrecord (held out by document), manifest.json
and the tokenizer. The same input, settings and seed give the same bytes, for any number of workers.
The same command continues an interrupted run.
"""

from collections.abc import Sequence
import functools
import os
import sys
import time
from typing import Literal

# No matrix product here; starting threads takes 50 ms.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting
from albert_tf.tokenization import load_tokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.create import Runner, create_records
from tfrecords_tools.pretraining.job import make_job
from tfrecords_tools.pretraining.local import make_locally
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.statistics import format_summary


class Source(Settings):
  """The input of the records."""

  input: tuple[str, ...] = setting(
    help="Input files, on a disk or gs://: glob patterns with commas, quoted. A folder, a pipe and "
    "http:// are refused. They are read whole: for a rehearsal name fewer."
  )
  spm_model_file: str = setting(
    help="SentencePiece model, of train_vocab.py or of a release, or WordPiece vocabulary (.txt)."
  )
  do_lower_case: bool | None = setting(
    None, "Lower-case the text. Default: as the vocabulary does, else true."
  )
  keep_accents: bool | None = setting(
    None, "Keep accents on letters. Default: as the vocabulary does, else false."
  )


class Work(Settings):
  """Where and how records are made; these settings do not change the records."""

  output_dir: str = setting(
    help="Directory for the records. Finished records are never replaced: the same command does "
    "nothing, another one is refused. No flag forces it: remove the directory."
  )
  work_dir: str | None = setting(
    None,
    "Directory of temporary files, as large as the records: another disk or /dev/shm (a network "
    "disk was not tried), with --runner=beam one that all workers reach. Give the same one to "
    "continue. Default: a folder in --output_dir.",
  )
  num_workers: int = setting(
    1,
    "Number of processes, of one thread each: take the number of cores. The records are the same "
    "for any number, and a run that continues may have another. Below about 11 MB of text, one "
    "process works.",
    minimum=1,
    maximum=1024,
  )
  runner: Literal["local", "beam"] = setting(
    "local",
    "local: processes of this machine. beam: Apache Beam; give its options at the end, after --.",
  )


for _settings in (Source, CorpusOptions, RecordSettings, Work):
  commands.define_flags(_settings)


def main(beam_options: Sequence[str]) -> None:
  # The flags, each group as one object.
  start = time.monotonic()
  source = commands.from_flags(Source)
  work = commands.from_flags(Work)
  paths = files.expand_globs(source.input)
  tokenizer = load_tokenizer(
    source.spm_model_file,
    do_lower_case=source.do_lower_case,
    keep_accents=source.keep_accents,
  )
  job = make_job(
    paths,
    work.output_dir,
    tokenizer=tokenizer,
    settings=commands.from_flags(RecordSettings),
    options=commands.from_flags(CorpusOptions),
    work_dir=work.work_dir,
  )
  # Standard output is for the summary.
  manifest = create_records(
    job,
    make_runner(work, beam_options),
    sorts_on_disk=work.runner == "local",
    notice=lambda text: print(text, file=sys.stderr, flush=True),
  )
  print(format_summary(manifest))
  num_instances = sum(file.num_records for file in manifest.files)
  print(f"{num_instances:,} instances in {time.monotonic() - start:.1f} s")


def make_runner(work: Work, beam_options: Sequence[str]) -> Runner:
  if work.runner == "beam":
    # Apache Beam takes seconds to import.
    from tfrecords_tools.pretraining.beam import make_on_beam

    return functools.partial(make_on_beam, arguments=beam_options)
  # Only Beam takes further arguments; here they are files that the shell has put in.
  if beam_options:
    raise UserError(
      f"All arguments must be flags. Received: {beam_options[0]!r}. Quote glob patterns, so that "
      "the shell does not expand them."
    )
  if files.is_remote(work.work_dir or work.output_dir):
    raise UserError(
      f"Unfinished work must be on a local disk. Received: --output_dir={work.output_dir}, "
      f"--work_dir={work.work_dir}. Name a local directory as --work_dir; the records go to "
      "--output_dir."
    )
  return functools.partial(make_locally, num_workers=work.num_workers)


if __name__ == "__main__":
  commands.run(main, takes_arguments=True)
