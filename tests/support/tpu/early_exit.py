"""Answers that stop early under the strategy of an emulated TPU; prints the error as JSON."""

import json

from support.tiny_records import tiny_config
from support.tpu.emulator import TpuEmulator
import tensorflow as tf

from albert_tf import AlbertClassifier
from albert_tf.errors import UserError
from albert_tf.runs.distribution import make_strategy
from albert_tf.runs.settings import DistributionConfig

CORES = 2


def main() -> None:
  TpuEmulator(CORES)
  with make_strategy(DistributionConfig(tpu="local")).scope():
    model = AlbertClassifier(tiny_config(), head_options={"num_labels": 2}, train_depths=(1, 2))
  ids = {"input_ids": tf.fill([3, 5], 7), "input_mask": tf.fill([3, 5], 1)}
  try:
    model.predict_early(ids, threshold=0.5)
  except UserError as error:
    print(json.dumps(str(error)))


if __name__ == "__main__":
  main()
