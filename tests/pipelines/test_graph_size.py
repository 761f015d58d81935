"""Nothing in the input's graphs grows with the corpus: a graph is sent to every host and compiled again and again."""

import types

import numpy as np
import pytest
from support.tiny_records import SPEC
from tensorflow.core.framework import graph_pb2

from albert_tf.pipelines.batches import HostShard, evaluation_batches, training_batches
from albert_tf.pipelines.fresh_masks import FreshMasks
from albert_tf.pipelines.masking import MaskingConfig
from albert_tf.pipelines.record_index import RecordIndex
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.records.shard_index import BLOCK_RECORDS

FILES = 3


def index_of(blocks_per_file):
  """Where the records of large files would lie; nothing is read before a batch is asked for."""
  marks = np.arange(blocks_per_file + 1, dtype=np.int64) * 9_000
  return RecordIndex(
    paths=tuple(f"train-{number}.tfrecord" for number in range(FILES)),
    first_record=np.arange(FILES + 1, dtype=np.int64) * blocks_per_file * BLOCK_RECORDS,
    first_block=np.arange(FILES, dtype=np.int64) * len(marks),
    block_bytes=np.tile(marks, FILES),
    content="0",
  )


def fresh_masks(vocab_size):
  return FreshMasks(
    MaskingConfig(masked_lm_prob=0.15, max_predictions_per_seq=3, ngram_probabilities=(1.0,)),
    types.SimpleNamespace(
      vocab_size=vocab_size,
      pad_id=0,
      unk_id=1,
      cls_id=2,
      sep_id=3,
      mask_id=4,
      word_starts=lambda rule: np.ones(vocab_size, bool),
    ),
    seed=1,
  )


def batches(kind, index):
  options = {"global_batch_size": 32, "shard": HostShard(num_replicas=4, num_hosts=2, host=1)}

  def parse(serialized):
    return parse_pretraining_batch(serialized, SPEC)

  if kind == "fresh":  # Of a vocabulary that grows with the corpus.
    options["mask"] = fresh_masks(index.num_records)
  if kind != "evaluation":
    return training_batches(index, parse, seed=5, start_position=1_000, **options)
  return evaluation_batches(index, parse, **options)


def function_bytes(dataset):
  """Of all functions that the dataset's graph calls, constants included."""
  graph = graph_pb2.GraphDef.FromString(dataset._as_serialized_graph().numpy())
  assert len(graph.library.function) > 3
  return sum(function.ByteSize() for function in graph.library.function)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "fresh", "evaluation"])
def test_a_corpus_a_thousand_times_larger_has_the_same_functions(kind):
  small, large = (function_bytes(batches(kind, index_of(blocks))) for blocks in (40, 40_000))
  assert large == pytest.approx(small, abs=200)  # Numbers with more digits, names with other ones.
