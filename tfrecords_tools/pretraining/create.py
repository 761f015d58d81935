"""The whole work: make the instances, write the final files, describe them."""

from collections.abc import Callable, Sequence
import contextlib
import os
from typing import Any, Protocol

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, RecordFile
from albert_tf.records.shard_index import INDEX_FOLDER, index_path
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions, describe_formats, expected_text_bytes
from tfrecords_tools.pretraining import plan as plans
from tfrecords_tools.pretraining.blocks import BlockResult
from tfrecords_tools.pretraining.job import STAGE_DIR_NAME, Job, Progress, block_bytes_for
from tfrecords_tools.pretraining.randomness import Place
from tfrecords_tools.pretraining.settings import SPLITS, RecordSettings
from tfrecords_tools.pretraining.statistics import baseline


class Runner(Protocol):
  """Does the work somewhere."""

  def make(self, job: Job, held_out: Place | None, progress: Progress) -> BlockResult:
    """Makes all instances and keeps them in `job.work_dir`; holds that document out whatever was drawn for it."""

  def write(self, job: Job, result: BlockResult, progress: Progress) -> list[RecordFile]:
    """Writes the final files of the instances made last into `job.stage_dir`, in their order."""

  def close(self) -> None:
    """Gives back what the runner holds."""


def create_records(
  paths: Sequence[str],
  output_dir: str,
  *,
  tokenizer: Tokenizer,
  settings: RecordSettings,
  options: CorpusOptions,
  runner: Runner,
  work_dir: str | None = None,
  progress: Progress = lambda stage, done, total: None,
  notice: Callable[[str], None] = lambda text: None,
) -> Manifest:
  """Makes the records of a corpus, or continues an earlier run of the same plan.

  Args:
    paths: input files, in the order that numbers them.
    output_dir: for train-*, eval-*, manifest.json and the tokenizer.
    tokenizer, settings, options: what decides the bytes.
    runner: what does the work; the bytes do not depend on it.
    work_dir: where a folder for unfinished work is made, and removed at the end; default `output_dir`.
    progress: told how far each stage is.
    notice: told what a person should know before it begins.

  Returns:
    The manifest, saved in `output_dir` as the last step.

  Raises:
    UserError: nothing to make records of, or a directory made with other settings.
  """
  described = plans.describe_input(paths)
  sizes = [file["num_bytes"] for file in described]
  settings = settings.with_num_shards(sum(map(expected_text_bytes, paths, sizes)))
  plan = plans.make_plan(described, tokenizer, settings, options)
  stage_dir, work_dir = (os.path.join(each, STAGE_DIR_NAME) for each in (output_dir, work_dir or output_dir))
  finished = plans.finished_before(output_dir, plan)
  if finished is not None:
    plans.remove_work((stage_dir, work_dir), plan)  # Of a run that was cut short while it did so.
    notice(f"nothing to do: {output_dir} is finished")
    return finished
  for line in describe_formats(paths, options):
    notice(line)
  job = Job(
    paths,
    sizes,
    options,
    tokenizer,
    settings,
    output_dir,
    work_dir,
    block_bytes=block_bytes_for(sum(sizes)),
    plan=plans.plan_sha256(plan),
  )
  plans.prepare_work(output_dir, (stage_dir, work_dir), plan)
  with contextlib.closing(runner):
    result = runner.make(job, None, progress)
    if settings.eval_fraction and result.lacks_held_out and result.nearest:
      # A small corpus may have no document drawn for eval: then its nearest one is held out.
      result = runner.make(job, result.nearest.place, progress)
    _check_result(result, paths, settings)
    read = plans.input_as_read(described, result.corpus.checksums)
    record_files = runner.write(job, result, progress)
  manifest = _manifest({**plan, "input": read}, job, result, record_files)
  tokenizer.save_pretrained(output_dir)
  _publish(job, record_files)
  manifest.save(output_dir)
  plans.remove_work((stage_dir, work_dir), plan)
  return manifest


def _publish(job: Job, record_files: Sequence[RecordFile]) -> None:
  """Gives the final files their place, all at once: before, a cut-short run shows none of them."""
  files.makedirs(os.path.join(job.output_dir, INDEX_FOLDER))
  for record_file in record_files:
    staged, final = (os.path.join(folder, record_file.name) for folder in (job.stage_dir, job.output_dir))
    # The index goes first: one without its shard is harmless, a shard without its index is walked once more.
    for source, target in ((index_path(staged), index_path(final)), (staged, final)):
      if files.exists(source):
        files.rename(source, target)


def _check_result(result: BlockResult, paths: Sequence[str], settings: RecordSettings) -> None:
  train, held_out = (result.statistics[split].num_instances for split in SPLITS)
  if not train or (settings.eval_fraction and not held_out):
    raise UserError(
      f"The input must hold text{' for train and eval' if train + held_out else ''}. Received: {len(paths)} file(s), "
      f"the first {paths[0]}, with {result.corpus.documents} document(s), of which {train:,} instances for train and "
      f"{held_out:,} for eval could be made. Check --input and --input_format; pass --eval_fraction=0 to hold nothing "
      "out."
    )


def _manifest(
  plan: dict[str, Any], job: Job, result: BlockResult, record_files: Sequence[RecordFile]
) -> Manifest:
  settings, tokenizer = job.settings, job.tokenizer
  corpus = result.corpus.to_dict()
  del corpus["checksums"]
  return Manifest(
    vocab_size=tokenizer.vocab_size,
    vocab_sha256=tokenizer.model_sha256,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.max_predictions_per_seq,
    sentence_pair=settings.sentence_pair,
    random_seed=settings.random_seed,
    files=tuple(record_files),
    baseline=baseline(result.statistics["train"], result.statistics["eval"], tokenizer),
    settings=plan["settings"],
    input=plan["input"],
    statistics={"corpus": corpus, **{split: result.statistics[split].summary() for split in SPLITS}},
    versions=plan["versions"],
  )
