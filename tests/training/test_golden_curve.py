"""The loss curve of a tiny run, pinned: a refactoring leaves it as it is.

A change of numerics edits it in the same commit and says why.
"""

import dataclasses
import json
import pathlib

import numpy as np
from support.tiny_pretraining import tiny_settings
from support.tiny_records import tiny_config

from albert_tf.training.pretraining import run_pretraining

LOSSES = [
  4.303734, 4.287329, 4.275873, 4.232227, 4.268467, 4.509827, 4.394885, 4.260716, 4.194399, 4.210893,
  4.007657, 3.994106, 3.935208, 4.182390, 4.200297, 3.998622, 4.227139, 4.313705, 3.989796, 4.017126,
]  # fmt: skip


def test_twenty_updates_report_the_pinned_losses(tmp_path):
  settings = tiny_settings(tmp_path, "run", model=tiny_config(), iterations_per_loop=1, eval_input_files=())
  optimizer = dataclasses.replace(
    settings.optimizer, learning_rate=0.03, num_train_steps=20, num_warmup_steps=4
  )
  run_pretraining(dataclasses.replace(settings, optimizer=optimizer, save_checkpoints_steps=20))
  reports = map(json.loads, pathlib.Path(settings.output_dir, "metrics.jsonl").read_text().splitlines())
  np.testing.assert_allclose([report["loss"] for report in reports], LOSSES, rtol=1e-4)
