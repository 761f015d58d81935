"""Where a replayed update's settings, records, weights and batch come from."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import checkpoint_steps
from albert_tf.checkpoints.restore import HOST_PREFIX
from albert_tf.errors import UserError
from albert_tf.pipelines.batches import training_batches
from albert_tf.pipelines.fresh_masks import FreshMasks
from albert_tf.pipelines.order import RecordPlace, locate_examples, make_order
from albert_tf.pipelines.record_index import RecordIndex, build_record_index
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.training.inputs import fresh_masking
from albert_tf.training.metrics_log import read_metrics
from albert_tf.training.run_directory import RUN_FILE, RunDirectory
from albert_tf.training.settings import PretrainingSettings

Arrays = dict[str, np.ndarray]


class Origin(NamedTuple):
  """Weights near an update, and where its batch begins."""

  prefix: str | None  # Of a checkpoint; None for the weights that the run began with.
  step: int
  batch_size: int
  position: int


def read_run(run_dir: str) -> tuple[PretrainingSettings, dict[str, Any]]:
  """The settings and the identity that a pretraining run, not one of fine-tuning, wrote."""
  path = os.path.join(run_dir, RUN_FILE)
  if not files.exists(path):
    raise UserError(
      f"--run must be a run directory of run_pretrain.py. Received: {run_dir}, which has no {RUN_FILE}."
    )
  try:
    record = json.loads(files.read_bytes(path))
    settings, identity = record["settings"], record["identity"]
    settings["step"], settings["input_files"], identity["records"]
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(
      f"--run must be a run directory of run_pretrain.py. Received: {run_dir}, whose {RUN_FILE} is not of a "
      "pretraining run: only those have a data order that can be computed again."
    ) from error
  read = PretrainingSettings.from_dict(settings, source=path)
  # The run has a copy of the vocabulary, wherever the records are now.
  return dataclasses.replace(read, tokenizer_path=run_dir if read.tokenizer_path else ""), identity


def read_index(
  paths: Sequence[str], settings: PretrainingSettings, identity: Mapping[str, Any]
) -> RecordIndex:
  """The index of the run's records, wherever they are now; `UserError` where they are gone, or others."""
  gone = next((path for path in paths if not files.exists(path)), None)
  if gone is not None:
    raise UserError(
      f"The records of the run must be readable. Received: {gone}, which is not there (any more). Name their new place "
      "with --input_file."
    )
  index = build_record_index(paths, on_bad_record=settings.on_bad_record, write=False)
  content = identity.get("record_content", index.content)  # Runs of earlier versions did not note it.
  if (index.fingerprint, index.content) != (identity["records"], content):
    raise UserError(
      "A replay needs the very records of the run, all of them, with their names and in their order. Received: "
      f"{len(paths)} files, the first {paths[0]}, which are others. Name those of the run with --input_file."
    )
  return index


def _examples_seen(prefix: str) -> int:
  return int(tf.train.load_checkpoint(prefix).get_tensor(HOST_PREFIX + "examples_seen"))


def find_origin(run_dir: str, settings: PretrainingSettings, step: int) -> Origin:
  """The checkpoint at or before update `step`, else the nearest; the batch size from those around it.

  A run may have been continued with another batch size, which run.json would not tell of earlier updates.
  """
  folder = RunDirectory(run_dir).checkpoints
  steps = checkpoint_steps(folder)
  prefix_of = {each: os.path.join(folder, f"model.ckpt-{each}") for each in steps}
  before = max((each for each in steps if each < step), default=0)
  after = min((each for each in steps if each >= step), default=None)
  seen = _examples_seen(prefix_of[before]) if before else 0
  batch_size = settings.step.global_batch_size
  if after is not None:
    batch_size, rest = divmod(_examples_seen(prefix_of[after]) - seen, after - before)
    if rest:
      raise UserError(
        "The batch size must be known. Received: a run whose --train_batch_size was changed between updates "
        f"{before:,} and {after:,}, the nearest checkpoints. Take an update beyond {after:,}."
      )
  position = seen + (step - 1 - before) * batch_size
  if not before and after is not None and after - step < step - 1:
    return Origin(prefix_of[after], after, batch_size, position)
  return Origin(prefix_of.get(before), before, batch_size, position)


def read_batch(
  index: RecordIndex, settings: PretrainingSettings, origin: Origin, order_version: int
) -> tuple[Arrays, list[RecordPlace]]:
  """The batch that begins at `origin.position`, and where its records lie."""
  masking = fresh_masking(settings)
  dataset = training_batches(
    index,
    lambda serialized: parse_pretraining_batch(serialized, settings.spec),
    global_batch_size=origin.batch_size,
    start_position=origin.position,
    seed=settings.step.seed,
    order_version=order_version,
    mask=FreshMasks(masking) if masking else None,
  )
  batch = next(iter(dataset.take(1)))
  order = make_order(order_version, num_records=index.num_records, seed=settings.step.seed)
  places = locate_examples(index, order, position=origin.position, count=origin.batch_size)
  return {name: value.numpy() for name, value in batch.items()}, places


def reported_near(run_dir: str, step: int) -> dict[str, Any] | None:
  """The training report that covers `step`, with the first update it covers."""
  first = 1
  for record in read_metrics(os.path.join(run_dir, "metrics.jsonl")):  # In a bucket it may still be in parts.
    if record["split"] == "train":
      if record["step"] >= step:
        return {"first_step": first, **record}
      first = record["step"] + 1
  return None
