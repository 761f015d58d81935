"""What an export may be told beside what is exported. Imports no TensorFlow, so that `--help` is quick."""

import dataclasses
from typing import Literal

from albert_tf.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings(Settings):
  """Settings of a SavedModel."""

  max_seq_length: int | None = setting(
    None,
    help="Texts are cut to this many tokens. Default: the length of fine-tuning, else the longest the model knows.",
    minimum=8,
  )
  depths: tuple[int, ...] = setting(
    (),
    help="Numbers of layers, of a model whose layers share all weights: a signature depth_N for each, over one copy of "
    "the weights; serving_default has the greatest. Default: the model's own number alone.",
    minimum=1,
    aliases=("num_hidden_layers",),
  )
  top_k: int = setting(10, help="fill_mask: how many answers a mask gets.", minimum=1)
  n_best: int = setting(
    20,
    help="question_answering: how many answers a question gets, and how many starts and ends a window is tried with.",
    minimum=1,
  )
  max_windows: int = setting(
    32,
    help="question_answering, token_classification: how many windows of a text are read; what lies behind is not.",
    minimum=1,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiteSettings(Settings):
  """Settings of a LiteRT file: its weights, and the sizes of its inputs."""

  weights: Literal["float32", "float16", "int8"] = setting(
    "float32",
    help="float16: stored in half precision, computed in float32; int8: matrices in int8, activations quantised where "
    "they are multiplied (dynamic range).",
  )
  max_seq_length: int | None = setting(
    None,
    help="Tokens of a row. Default: the length of fine-tuning, else the longest the model knows.",
    minimum=8,
  )
  batch_size: int = setting(1, help="Rows; 0: free, which interpreters run a little more slowly.", minimum=0)
  max_predictions_per_seq: int = setting(1, help="fill_mask: positions of a row.", minimum=1)
  num_choices: int = setting(4, help="multiple_choice: choices of a question.", minimum=1)
