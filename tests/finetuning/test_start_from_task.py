"""RTE, STS-B and MRPC from a run of MNLI: what is taken from it, and what is refused."""

import numpy as np
import pytest
from support import tiny_run

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.initialize import check_start_task, load_encoder_weights, read_start
from albert_tf.modeling import named_variables
from albert_tf.models.tasks import make_model

MNLI = TaskSpec(kind="classification", name="mnli", label_names=("a", "b", "c"), pair=True, max_seq_length=16)


def test_a_task_starts_from_another_ones_encoder_and_pooler_and_nothing_else(tmp_path):
  tokenizer = tiny_run.train_tokenizer(tmp_path)
  pretrained = tiny_run.tiny_model(tokenizer.vocab_size)
  tiny_run.write_run(tmp_path / "pretrained", pretrained, tokenizer)
  fine_tuned = tiny_run.write_fine_tuned_run(tmp_path / "mnli", MNLI, pretrained.config, tokenizer)

  start = read_start(str(tmp_path / "mnli"))
  check_start_task(start, "mnli")
  for name, of in (("mnli", "pretrained"), ("qnli", "mnli")):
    with pytest.raises(UserError, match=rf"--start_from_task={name}.*{of}"):
      check_start_task(read_start(str(tmp_path / of)), name)

  # Classes as many as MNLI's: its head would fit, and is not taken.
  spec = TaskSpec(
    kind="classification", name="rte", label_names=("x", "y", "z"), pair=True, max_seq_length=16
  )
  model = make_model(spec, pretrained.config)
  fresh = {name: variable.numpy() for name, variable in named_variables(model).items()}
  load_encoder_weights(model, start, seed=1)
  taken = {name: variable.numpy() for name, variable in named_variables(fine_tuned).items()}
  pooler = 0
  for name, variable in named_variables(model).items():
    expected = taken if name.startswith("bert/") else fresh
    np.testing.assert_array_equal(variable.numpy(), expected[name], err_msg=name)
    pooler += "pooler" in name
  assert pooler == 2
