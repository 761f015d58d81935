"""Settings of exports. Imports no TensorFlow, so that `--help` is fast."""

from typing import Literal

from albert_tf.configs.task import EXPORT_KINDS
from albert_tf.settings import Settings, setting


class ExportSource(Settings):
  """The model to export."""

  model: str = setting(
    help="encoder: vectors of a text; fill_mask: words at each [MASK]; the others: what a run was fine-tuned for.",
    choices=EXPORT_KINDS,
  )
  init_checkpoint: str = setting(
    help="Run directory (its best checkpoint is taken, else its newest), or a checkpoint prefix."
  )


class ExportSettings(Settings):
  """Settings of a SavedModel."""

  max_seq_length: int | None = setting(
    None,
    "Texts are cut to this many tokens. Default: the length of fine-tuning, else the longest the model knows.",
    minimum=8,
  )
  depths: tuple[int, ...] = setting(
    (),
    "Numbers of layers, for a model with all weights shared: each gets a signature depth_N, over one copy of the "
    "weights; serving_default has the greatest. Default: only the model's own number.",
    minimum=1,
    aliases=("num_hidden_layers",),
  )
  top_k: int = setting(10, "fill_mask: answers for each mask.", minimum=1)
  n_best: int = setting(
    20,
    "question_answering: answers for each question; also the starts and ends tried in each window.",
    minimum=1,
  )
  max_windows: int = setting(
    32,
    "question_answering, token_classification: windows read of each text; text after them is not read.",
    minimum=1,
  )


class LiteSettings(Settings):
  """Settings of a LiteRT file: its weights, and the sizes of its inputs."""

  weights: Literal["float32", "float16", "int8"] = setting(
    "float32",
    "float16: stored in half precision, computed in float32; int8: matrices in int8, activations quantised where "
    "they are multiplied (dynamic range).",
  )
  max_seq_length: int | None = setting(
    None, "Tokens of a row. Default: the length of fine-tuning, else the longest the model knows.", minimum=8
  )
  batch_size: int = setting(1, "Rows of a batch; 0: any number, a little slower.", minimum=0)
  max_predictions_per_seq: int = setting(1, "fill_mask: positions of a row.", minimum=1)
  num_choices: int = setting(4, "multiple_choice: choices of a question.", minimum=1)
