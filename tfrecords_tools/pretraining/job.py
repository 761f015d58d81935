"""The whole job: read, make blocks, shuffle into final files, describe them; continue where a run was cut short."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
from typing import Any

import google_crc32c

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, RecordFile
from albert_tf.records.manifest import MANIFEST_NAME
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats
from tfrecords_tools.pretraining.blocks import SPLITS, Block, SplitDraw, read_blocks
from tfrecords_tools.pretraining.local_runner import LocalRunner
from tfrecords_tools.pretraining.settings import PretrainingSettings
from tfrecords_tools.pretraining.spill import Run
from tfrecords_tools.pretraining.statistics import Statistics, baseline
from tfrecords_tools.pretraining.tasks import BlockResult, Job, load_block_result

WORK_DIR_NAME = "_unfinished"
_PLAN_NAME = "plan.json"
_CODE_VERSION = 1  # Raise it when the same settings begin to give other bytes.


@dataclasses.dataclass
class Collected:
  """What the blocks gave so far."""

  runs: dict[str, list[tuple[str, Run]]]
  statistics: dict[str, Statistics]
  corpus: CorpusStats
  nearest: SplitDraw | None = None

  def add(self, result: BlockResult) -> None:
    for run in result.runs:
      self.runs[run.split].append((result.name, run))
    for split in SPLITS:
      self.statistics[split].add_json(result.statistics[split])
    if self.nearest is None or result.nearest.draw < self.nearest.draw:
      self.nearest = result.nearest

  def runs_of(self, split: str) -> list[Run]:
    """In the order of the blocks, whichever was finished first."""
    return [run for _, run in sorted(self.runs[split], key=lambda pair: (pair[0], pair[1].path))]


def describe_input(paths: Sequence[str]) -> list[dict[str, Any]]:
  """Name, size and CRC32C of each input file: what `the same input` means."""
  described = []
  for path in paths:
    crc = size = 0
    with files.open_binary(path) as stream:
      while chunk := stream.read(1 << 20):
        crc = google_crc32c.extend(crc, chunk)
        size += len(chunk)
    described.append({"name": os.path.basename(path), "num_bytes": size, "crc32c": f"{crc:08x}"})
  return described


def make_plan(
  paths: Sequence[str], tokenizer: AlbertTokenizer, settings: PretrainingSettings, options: CorpusOptions
) -> dict[str, Any]:
  """Everything the bytes depend on."""
  return {
    "code_version": _CODE_VERSION,
    "settings": dataclasses.asdict(settings),
    "corpus": dataclasses.asdict(options),
    "tokenizer": {**dataclasses.asdict(tokenizer.config), "sha256": tokenizer.model_sha256},
    "input": describe_input(paths),
  }


def create_records(
  paths: Sequence[str],
  output_dir: str,
  *,
  tokenizer: AlbertTokenizer,
  settings: PretrainingSettings,
  options: CorpusOptions,
  num_workers: int = 1,
  work_dir: str | None = None,
  progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Manifest:
  """Makes the records of a corpus.

  Args:
    paths: input files, in the order that numbers them.
    output_dir: for train-*, eval-*, manifest.json and the tokenizer.
    tokenizer, settings, options: what decides the bytes.
    num_workers: processes; the bytes do not depend on it.
    work_dir: local directory for unfinished work; default inside `output_dir`.
    progress: called with a stage (read|write), how much of it is done, and its total.

  Returns:
    The manifest, also saved in `output_dir`.

  Raises:
    UserError: nothing to make records of, an output directory made with other settings, a full disk.
  """
  plan = make_plan(paths, tokenizer, settings, options)
  finished = _finished_before(output_dir, plan)
  if finished is not None:
    return finished
  work_dir = work_dir or os.path.join(output_dir, WORK_DIR_NAME)
  with _disk_errors(output_dir):
    _prepare(output_dir, work_dir, plan)
    job = Job(tokenizer, settings, work_dir, output_dir)
    collected = _make_blocks(job, paths, options, num_workers, progress)
    if settings.eval_fraction and not collected.statistics["eval"].num_instances:
      job = _hold_out_one(job, collected)
      collected = _make_blocks(job, paths, options, num_workers, progress)
    _check_result(collected, paths, settings)
    record_files = _write_files(job, collected, num_workers, progress)
    manifest = _manifest(plan, tokenizer, settings, collected, record_files)
    tokenizer.save_pretrained(output_dir)
    manifest.save(output_dir)
    shutil.rmtree(work_dir)
  return manifest


def _finished_before(output_dir: str, plan: dict[str, Any]) -> Manifest | None:
  """The manifest of an earlier run with the same plan; refuses one of another."""
  if not files.exists(os.path.join(output_dir, MANIFEST_NAME)):
    return None
  manifest = Manifest.load(output_dir)
  theirs = {"settings": manifest.settings, "input": manifest.input}
  differing = _differences(theirs, {"settings": _manifest_settings(plan), "input": _manifest_input(plan)})
  if differing:
    raise _other_settings(output_dir, differing)
  for file in manifest.files:
    path = os.path.join(output_dir, file.name)
    if not files.exists(path) or files.size(path) != file.num_bytes:
      raise UserError(
        f"Finished records must be whole. Received: {path}, which is missing or has another size than {MANIFEST_NAME} "
        "says. Remove the directory and run again."
      )
  return manifest


def _prepare(output_dir: str, work_dir: str, plan: dict[str, Any]) -> None:
  files.makedirs(output_dir)
  plan_path = os.path.join(work_dir, _PLAN_NAME)
  if os.path.exists(plan_path):
    with open(plan_path, "rb") as stream:
      differing = _differences(json.loads(stream.read()), plan)
    if differing:
      raise _other_settings(work_dir, differing)
    return
  if not files.is_remote(output_dir):
    foreign = [name for name in sorted(os.listdir(output_dir)) if name.startswith(("train-", "eval-"))]
    if foreign:
      raise UserError(
        f"Records must not be mixed with others. Received: {output_dir}, which holds {foreign[0]} and no "
        f"{MANIFEST_NAME}. Choose an empty directory."
      )
  files.makedirs(work_dir)
  with files.atomic_writer(plan_path, "w") as stream:
    stream.write(json.dumps(plan, indent=2) + "\n")


def _differences(theirs: Any, ours: Any, prefix: str = "") -> list[str]:
  ours = json.loads(json.dumps(ours))
  if isinstance(theirs, dict) and isinstance(ours, dict):
    found = []
    for key in sorted({*theirs, *ours}):
      found += _differences(theirs.get(key), ours.get(key), f"{prefix}.{key}" if prefix else key)
    return found
  return [] if theirs == ours else [f"{prefix}: there {_short(theirs)}, now {_short(ours)}"]


def _short(value: Any) -> str:
  text = json.dumps(value)
  return text if len(text) < 100 else f"{text[:97]}..."


def _other_settings(directory: str, differing: list[str]) -> UserError:
  return UserError(
    f"An output directory holds the records of one input and one set of settings. Received: {directory}, made "
    f"with others ({'; '.join(differing)}). Choose another directory, remove this one, or use its settings."
  )


@contextlib.contextmanager
def _disk_errors(output_dir: str) -> Iterator[None]:
  """A full or read-only disk is the user's to mend, and finished work is kept."""
  try:
    yield
  except OSError as error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      raise UserError(
        f"The disk must have room for the records (about 4 bytes a token and pass, twice while they are shuffled). "
        f"Received: {error.strerror}: {error.filename or output_dir}. Make room and run the same command again: it "
        "continues from the finished parts."
      ) from error
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
      raise UserError(
        f"The output directory must be writable. Received: {error.strerror}: {error.filename or output_dir}. "
        "Change its permissions or choose another."
      ) from error
    raise


def _make_blocks(
  job: Job,
  paths: Sequence[str],
  options: CorpusOptions,
  num_workers: int,
  progress: Callable[[str, int, int], None],
) -> Collected:
  vocab_size = job.tokenizer.vocab_size
  collected = Collected(
    {split: [] for split in SPLITS},
    {split: Statistics(job.settings, vocab_size) for split in SPLITS},
    CorpusStats(),
  )
  total = sum(files.size(path) for path in paths)

  def to_do() -> Iterator[Block]:
    done = 0
    for file_index, path in enumerate(paths):
      for block in read_blocks(path, file_index, options, stats=collected.corpus):
        result = load_block_result(job.work_dir, block.name)
        if result is not None:
          collected.add(result)
        else:
          yield block
        progress("read", min(total, done + block.num_bytes), total)
        done += block.num_bytes

  with LocalRunner(job, num_workers=num_workers) as runner:
    for result in runner.blocks(to_do()):
      collected.add(result)
  return collected


def _hold_out_one(job: Job, collected: Collected) -> Job:
  """A small corpus may have no document drawn for eval: then the nearest one is held out."""
  nearest = collected.nearest
  if nearest is None:
    return job
  held_out = (nearest.file_index, nearest.document)
  for result in os.listdir(job.work_dir):
    if result.startswith(f"block-{nearest.file_index:05d}-"):
      os.remove(os.path.join(job.work_dir, result))
  return dataclasses.replace(job, held_out=held_out)


def _check_result(collected: Collected, paths: Sequence[str], settings: PretrainingSettings) -> None:
  train, held_out = (collected.statistics[split] for split in SPLITS)
  if not train.num_instances + held_out.num_instances:
    raise UserError(
      f"The input must hold text. Received: {len(paths)} file(s), the first {paths[0]}, with "
      f"{collected.corpus.documents} documents and nothing to make an instance of. Check --input and --input_format."
    )
  if not train.num_instances or (settings.eval_fraction and not held_out.num_instances):
    raise UserError(
      "Train and eval must each hold a document. Received: "
      f"{train.counters['documents'] + held_out.counters['documents']} document(s), eval_fraction="
      f"{settings.eval_fraction}. Separate documents with blank lines, or pass --eval_fraction=0."
    )


def _write_files(
  job: Job, collected: Collected, num_workers: int, progress: Callable[[str, int, int], None]
) -> list[RecordFile]:
  settings = job.settings
  counts = {"train": settings.num_shards, "eval": settings.num_eval_shards if settings.eval_fraction else 0}
  arguments = [
    (collected.runs_of(split), split, shard, counts[split])
    for split in SPLITS
    for shard in range(counts[split])
  ]
  done = []
  with LocalRunner(job, num_workers=min(num_workers, len(arguments))) as runner:
    for record_file in runner.shards(arguments):
      done.append(record_file)
      progress("write", len(done), len(arguments))
  return sorted(done, key=lambda file: (SPLITS.index(file.split), file.name))


def _manifest_settings(plan: dict[str, Any]) -> dict[str, Any]:
  return {
    **plan["settings"],
    "corpus": plan["corpus"],
    "tokenizer": plan["tokenizer"],
    "code_version": _CODE_VERSION,
  }


def _manifest_input(plan: dict[str, Any]) -> dict[str, Any]:
  listed = json.dumps(plan["input"], sort_keys=True).encode()
  return {"files": plan["input"], "sha256": hashlib.sha256(listed).hexdigest()}


def _manifest(
  plan: dict[str, Any],
  tokenizer: AlbertTokenizer,
  settings: PretrainingSettings,
  collected: Collected,
  record_files: Sequence[RecordFile],
) -> Manifest:
  packages = ("numpy", "sentencepiece", "google-crc32c")
  return Manifest(
    vocab_size=tokenizer.vocab_size,
    vocab_sha256=tokenizer.model_sha256,
    max_seq_length=settings.max_seq_length,
    max_predictions_per_seq=settings.max_predictions_per_seq,
    sentence_pair=settings.sentence_pair,
    random_seed=settings.random_seed,
    files=tuple(record_files),
    record_layout=settings.record_layout,
    baseline=baseline(collected.statistics["train"], collected.statistics["eval"], tokenizer),
    settings=_manifest_settings(plan),
    input=_manifest_input(plan),
    statistics={
      "corpus": collected.corpus.to_dict(),
      **{split: collected.statistics[split].summary() for split in SPLITS},
    },
    versions={
      "python": platform.python_version(),
      **{package: importlib.metadata.version(package) for package in packages},
    },
  )
