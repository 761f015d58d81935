"""Small seeded checkpoints for tests that must run without recorded ones."""

import numpy as np

from albert_tf.checkpoints import bundle
from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.configs import AlbertConfig
from albert_tf.modeling.name_map import variable_entries

# Every size differs, so that a swapped axis cannot pass.
CONFIG = AlbertConfig(
  vocab_size=29, embedding_size=4, hidden_size=6, num_hidden_layers=3, num_attention_heads=2, intermediate_size=10,
  max_position_embeddings=7,
)  # fmt: skip


def random_variables(config, heads=("masked_lm", "sentence_order"), *, num_labels=5, seed=0):
  """Original name → random float32 array, for the encoder and some heads."""
  rng = np.random.default_rng(seed)
  return {
    entry.name: rng.normal(size=[num_labels if n is None else n for n in entry.shape]).astype(
      np.float32
    )
    for entry in variable_entries(config, heads)
  }


def write_tf1(directory, config, variables, *, name="model.ckpt-best"):
  """Writes a directory as the original release has it; returns its path."""
  directory.mkdir(parents=True, exist_ok=True)
  bundle.write_bundle(str(directory / name), variables)
  (directory / "albert_config.json").write_text(config.to_json_string())
  return str(directory)


def convert_to(output, path, output_format="albert_tf", **options):
  """Converts the checkpoint at `path` to the directory `output`; returns the outcome."""
  options = ConvertOptions(output_format=output_format, **options)
  return convert(str(path), str(output), options)
