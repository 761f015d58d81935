"""How a model is fine-tuned: everything that is not the task, the weights or the directory."""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any

from albert_tf.errors import UserError
from albert_tf.training.settings import PRECISIONS, DistributionConfig

OPTIMIZERS = ("adamw", "lamb")
BALANCED = "balanced"
_RANGES: tuple[tuple[tuple[str, ...], str, Callable[[float], bool]], ...] = (
  (
    ("train_batch_size", "eval_batch_size", "gradient_accumulation_steps"),
    "at least 1",
    lambda value: value >= 1,
  ),
  (("learning_rate", "poly_power"), "above 0", lambda value: 0 < value < math.inf),
  (("weight_decay", "clip_norm"), "at least 0", lambda value: 0 <= value < math.inf),
  (
    (
      "num_train_steps",
      "eval_steps",
      "report_steps",
      "early_stopping_patience",
      "bucket_multiple",
      "freeze_layers",
    ),
    "at least 0",
    lambda value: value >= 0,
  ),
  (("layer_decay",), "above 0 and at most 1", lambda value: 0 < value <= 1),
  (("ema_decay",), "above 0 and below 1", lambda value: 0 < value < 1),
  (
    ("dropout", "classifier_dropout", "warmup_proportion"),
    "at least 0 and below 1",
    lambda value: 0 <= value < 1,
  ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
  """Settings of `fit.fine_tune`; the defaults are the ALBERT paper's where its table has one value.

  Attributes:
    do_train: trains, and evaluates the best checkpoint.
    do_eval, do_predict: without `do_train`: what is done with the weights of an earlier run.
    seeds: one training run each; decide the head's start, the order of examples and dropout.
    ensemble: also scores the mean of the seeds' logits.
    train_batch_size, eval_batch_size: global, all replicas together.
    gradient_accumulation_steps: micro-batches that a replica computes an update in, one after the other.
    remat: recompute each block's activations in the backward pass: less memory, more time.
    learning_rate: the peak rate.
    num_train_epochs: passes over the training examples.
    num_train_steps: updates; above 0 it decides instead of the epochs.
    num_warmup_steps: updates of linear rise; below 0: `warmup_proportion` of all.
    warmup_proportion: share of the updates.
    poly_power: of the decay; 1 is linear.
    optimizer: one of `OPTIMIZERS`.
    weight_decay, clip_norm: of the optimizer; the norm is that of the whole gradient.
    freeze_layers: the embeddings and this many layers above them stay as they are; layers that share parameters only
      together. None: everything is trained.
    ema_decay: decay of an average of the weights, which is then evaluated and kept in their place; None: none.
    class_weights: factor on the loss of each class's examples, of classification; classes without one have 1.
      "balanced": number of examples / (number of classes x examples of the class). Empty: 1.
    layer_decay: learning rates fall by this factor with every block below the head; 1: none.
    dropout: hidden and attention dropout of the encoder ("ALBERT DR"); None: as in its configuration.
    classifier_dropout: before the head ("classifier DR").
    eval_steps: updates between evaluations; 0: after every epoch.
    report_steps: updates between lines of metrics.jsonl, beside the one of every epoch; 0: that alone.
    early_stopping_patience: evaluations without a better `best_metric` before training ends; 0: never.
    bucket_multiple: batches hold examples of similar length and are padded to a multiple of this; 0: every
      batch is padded to the longest length allowed. None: 0 on a TPU (one compilation), else 32.
    mixed_precision: "float32" or "bfloat16".
    distribution: where the replicas run.
    jit_compile: whether Keras compiles with XLA.
    verbose: Keras' progress bar.
  """

  do_train: bool = True
  do_eval: bool = True
  do_predict: bool = False
  seeds: tuple[int, ...] = (1,)
  ensemble: bool = False
  train_batch_size: int = 32
  eval_batch_size: int = 64
  gradient_accumulation_steps: int = 1
  remat: bool = False
  learning_rate: float = 2e-5
  num_train_epochs: float = 3.0
  num_train_steps: int = 0
  num_warmup_steps: int = -1
  warmup_proportion: float = 0.1
  poly_power: float = 1.0
  optimizer: str = "adamw"
  weight_decay: float = 0.01
  clip_norm: float = 1.0
  freeze_layers: int | None = None
  ema_decay: float | None = None
  class_weights: str | Mapping[str, float] = ""
  layer_decay: float = 1.0
  dropout: float | None = None
  classifier_dropout: float = 0.1
  eval_steps: int = 0
  report_steps: int = 0
  early_stopping_patience: int = 0
  bucket_multiple: int | None = None
  mixed_precision: str = "float32"
  distribution: DistributionConfig = dataclasses.field(default_factory=DistributionConfig)
  jit_compile: bool = False
  verbose: bool = True

  def __post_init__(self) -> None:
    if self.mixed_precision not in PRECISIONS:
      raise UserError(
        f"mixed_precision must be one of {', '.join(PRECISIONS)}. Received: {self.mixed_precision!r}."
      )
    if self.optimizer not in OPTIMIZERS:
      raise UserError(f"optimizer must be one of {', '.join(OPTIMIZERS)}. Received: {self.optimizer!r}.")
    if not (self.do_train or self.do_eval or self.do_predict):
      raise UserError(
        "There must be something to do. Received: none of --do_train, --do_eval, --do_predict. Name one."
      )
    if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
      raise UserError(f"Seeds are different numbers, 0 or more. Received: {list(self.seeds)}.")
    if self.ensemble and len(self.seeds) < 2:
      raise UserError(
        f"An ensemble needs several models. Received: --ensemble with the seeds {list(self.seeds)}. "
        "Name more, for example --seeds=1,2,3."
      )
    if self.num_train_steps <= 0 and not 0 < self.num_train_epochs < math.inf:
      raise UserError(
        f"Training needs epochs or steps. Received: num_train_epochs={self.num_train_epochs}, "
        f"num_train_steps={self.num_train_steps}."
      )
    weights = self.class_weights
    if isinstance(weights, str):
      if weights not in ("", BALANCED):
        raise UserError(f"class_weights are a mapping or {BALANCED!r}. Received: {weights!r}.")
    elif not all(0 <= value < math.inf for value in weights.values()) or not any(weights.values()):
      raise UserError(f"Class weights are at least 0, and one is above. Received: {dict(weights)}.")
    for names, allowed, fits in _RANGES:
      for name in names:
        value = getattr(self, name)
        if value is not None and not fits(value):
          raise UserError(f"{name} must be {allowed}. Received: {value}.")

  def to_dict(self) -> dict[str, Any]:
    """JSON's types only."""
    return {**dataclasses.asdict(self), "seeds": list(self.seeds)}
