"""BERT is this model with nothing shared and E = H: each size trains, every layer with parameters of its own."""

import numpy as np
import pytest
from support.tiny_records import SPEC, random_examples, tiny_config, write_records
from support.tiny_step import distributed_iterator, make_step
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.pipelines.record_index import build_record_index

HEADS = ("masked_lm", "sentence_order")


def narrow(name):
  """The depth and sharing of a named size at a width that costs nothing."""
  config = AlbertConfig.from_name(name)
  width = 4 * config.embedding_size // config.hidden_size  # E = H where it was.
  return tiny_config(
    num_hidden_layers=config.num_hidden_layers,
    hidden_size=4,
    embedding_size=width,
    intermediate_size=16,
    num_attention_heads=2,
    sharing=config.sharing,
  )


@pytest.mark.parametrize("name", ["bert_base", "bert_large", "bert_xlarge"])
def test_the_variables_are_as_many_as_the_formula_says(name):
  config = narrow(name)
  assert (config.sharing, config.embedding_size) == ("none", config.hidden_size)
  variables = named_variables(AlbertForPreTraining(config))
  assert sum(int(np.prod(variable.shape)) for variable in variables.values()) == config.param_count(
    heads=HEADS
  )
  assert not [each for each in variables if "embedding_hidden_mapping_in" in each]


@pytest.mark.parametrize("layers", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_one_step_moves_every_layer(tmp_path, layers):
  config = narrow("bert_base").replace(num_hidden_layers=layers)
  index = build_record_index([write_records(tmp_path / "train-0.tfrecord", random_examples(16, seed=1))])
  strategy = tf.distribute.OneDeviceStrategy("cpu:0")
  step, variables, _ = make_step(strategy, config, global_batch_size=8)
  before = {name: variable.numpy() for name, variable in variables.items()}
  averages = step.run(distributed_iterator(strategy, index, 8), tf.constant(2)).averages(2)
  assert np.isfinite(averages["loss"])
  moved = [name for name, value in before.items() if (variables[name].numpy() != value).any()]
  kernels = [name for name in before if name.endswith("kernel")]
  assert set(kernels) <= set(moved)
  assert len([name for name in kernels if "attention" in name]) == 4 * layers
  assert SPEC.max_seq_length <= config.max_position_embeddings
