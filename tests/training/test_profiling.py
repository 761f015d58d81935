"""--profile_steps traces exactly the updates asked for, whatever the chunks."""

import dataclasses
import pathlib

import pytest
from support.tiny_pretraining import tiny_settings

from albert_tf.errors import UserError
from albert_tf.training.loop import next_boundary
from albert_tf.training.pretraining import run_pretraining


def boundaries(settings, step=0):
  found = []
  while step < settings.num_train_steps:
    step = next_boundary(settings, step)
    found.append(step)
  return found


def test_chunks_end_at_the_edges_of_the_trace(tmp_path):
  settings = tiny_settings(tmp_path, "run", iterations_per_loop=5, save_checkpoints_steps=6)
  assert boundaries(settings) == [5, 6, 10, 12]
  assert boundaries(dataclasses.replace(settings, profile_steps=(3, 8))) == [2, 5, 6, 8, 10, 12]
  assert boundaries(dataclasses.replace(settings, profile_steps=(1, 12))) == [5, 6, 10, 12]
  assert boundaries(dataclasses.replace(settings, profile_steps=(7, 7)), step=6) == [7, 10, 12]


def test_a_range_outside_the_run_is_refused(tmp_path):
  for steps in ((0, 3), (5, 4), (10, 13), (1,), (1, 2, 3)):
    with pytest.raises(
      UserError, match=rf"Received: {','.join(map(str, steps))}; the run has updates 1 to 12"
    ):
      tiny_settings(tmp_path, "run", profile_steps=steps)


@pytest.mark.slow
def test_a_run_writes_one_trace_of_the_updates_asked_for(tmp_path, capfd):
  settings = tiny_settings(tmp_path, "run", eval_input_files=(), profile_steps=(3, 7))
  assert run_pretraining(settings).step == 12
  traces = list(
    pathlib.Path(settings.output_dir, "tensorboard/profile").glob("plugins/profile/*/*.xplane.pb")
  )
  assert len(traces) == 1
  assert b"updates" in traces[0].read_bytes()
  assert "wrote a trace below" in capfd.readouterr().err
