"""Settings of exports. Imports no TensorFlow, so that `--help` is fast."""

import dataclasses
from typing import Any, Literal, TypeAlias

from albert_tf.configs.task import EXPORT_KINDS
from albert_tf.errors import check_names
from albert_tf.settings import Settings, setting

Precision: TypeAlias = Literal["float32", "bfloat16", "int8"]


class ExportSource(Settings):
  """The model to export."""

  model: str = setting(
    help="Kind of model. encoder: vectors of a text; fill_mask: words for [MASK]; "
    "others: a fine-tuned run's task.",
    choices=EXPORT_KINDS,
  )
  init_checkpoint: str = setting(
    help="A run directory (best, else newest checkpoint), or a checkpoint prefix."
  )


class ExportSettings(Settings):
  """Settings of a SavedModel."""

  max_seq_length: int | None = setting(
    None,
    "Texts are cut to this many tokens, at most the model's positions. "
    "Default: the length of fine-tuning, else the model's longest.",
    minimum=8,
  )
  depths: tuple[int, ...] = setting(
    (),
    "Numbers of layers, for a model whose layers share all weights. Each gets a signature depth_N; "
    "serving_default has the greatest. Default: the model's number.",
    minimum=1,
  )
  precision: Precision = setting(
    "float32",
    "Numbers of the products in the layers. int8 and bfloat16 answer faster on CPUs that have them, and need "
    "texts to compare with float32 (docs/cpu_serving.md). If int8 is slower on your server, look for more "
    "threads than its processors, several threads for one operation, and a processor without VNNI. Else "
    "serve another precision.",
  )
  min_agreement: float = setting(
    0.99,
    "int8, bfloat16: smallest share of answers that are float32's; with fewer nothing is written. -1: accept all.",
    minimum=-1.0,
    maximum=1.0,
  )
  # The others are for `model.export` in Python: a command has their defaults.
  top_k: int = setting(10, "fill_mask: number of answers for each mask.", minimum=1, flag="")
  n_best: int = setting(
    20,
    "question_answering: number of answers for each question, and of starts and ends tried in "
    "each window.",
    minimum=1,
    maximum=1024,
    flag="",
  )
  max_windows: int = setting(
    32,
    "question_answering, token_classification: largest number of windows of a text; text after "
    "them is left out.",
    minimum=1,
    flag="",
  )

  @property
  def deepest(self) -> int | None:
    """The number of layers of the whole SavedModel; None: the model's own."""
    return max(self.depths, default=None)

  @classmethod
  def of(cls, **values: Any) -> "ExportSettings":
    """The settings that a caller in Python names; raises `UserError` for an unknown name."""
    check_names("An export", values, [field.name for field in dataclasses.fields(cls)])
    return cls(**values)


class LiteSettings(Settings):
  """Settings of a LiteRT file: its weights, and the sizes of its inputs."""

  weights: Literal["float32", "float16", "int8"] = setting(
    "float32",
    "Type of the weights. float16: stored in half precision, computed in float32. int8: matrices in int8 "
    "(dynamic range quantisation). There is no full-integer form, with activations in 8 bits. If a file "
    "answers far worse than Keras, give both one row of ids: if they agree, the texts' ids are wrong.",
  )
  max_seq_length: int | None = setting(
    None,
    "Tokens of a row; the caller pads shorter ones. Default: the length of fine-tuning, else the model's longest.",
    minimum=8,
  )
  # The others are for `export_lite` in Python: a command has their defaults.
  batch_size: int = setting(
    1,
    "Rows of a batch; 0: any number, which is a little slower.",
    minimum=0,
    maximum=1 << 16,
    flag="",
  )
  max_predictions_per_seq: int = setting(
    1, "fill_mask: number of [MASK] positions of a row.", minimum=1, maximum=1 << 16, flag=""
  )
  num_choices: int = setting(
    4, "multiple_choice: number of choices of a question.", minimum=1, maximum=1024, flag=""
  )
