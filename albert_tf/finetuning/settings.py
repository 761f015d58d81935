"""Settings of fine-tuning, for any task: the commands' flags. No TensorFlow."""

import dataclasses
from typing import Any

from albert_tf.errors import UserError
from albert_tf.runs.settings import MOST_EXAMPLES, DepthSettings, DistributionConfig, OtherDepth
from albert_tf.settings import setting


class FineTuneSettings(DepthSettings, OtherDepth):
  """Settings of `run.fine_tune`; defaults are the paper's where it has one value for all tasks."""

  # What to do. Commands give these as the original's flags, which are false by default.
  do_train: bool = setting(True, "Train, then evaluate the best checkpoint.")
  do_eval: bool = setting(True, "Evaluate the model on the evaluation data.")
  do_predict: bool = setting(
    False, "Write predictions for the test data, with the best weights, once."
  )
  seeds: tuple[int, ...] = setting(
    (1,),
    "Seeds of head, order and dropout, such as 1,2,3; 5 is one seed. Each gives one run, after the one "
    "before; results show median and spread.",
    minimum=0,
    maximum=2**31 - 1,
  )

  # Batches, and what fits into memory. The update is the same for any number of micro-batches.
  train_batch_size: int = setting(
    32,
    "Examples of one update, over all replicas together; divisible by replicas x "
    "--gradient_accumulation_steps.",
    minimum=1,
    maximum=MOST_EXAMPLES,
  )
  gradient_accumulation_steps: int = setting(
    1,
    "Number of micro-batches that each batch is computed in, to save memory; the batch keeps its size.",
    minimum=1,
  )
  remat: bool = setting(
    False, "Recompute activations in the backward pass, to save memory; it is slower."
  )
  eval_batch_size: int = setting(
    64, "Examples of an evaluation batch.", minimum=1, maximum=MOST_EXAMPLES
  )

  # The updates: warm-up, then linear decay to 0 at the last one.
  learning_rate: float = setting(
    2e-5, "Peak learning rate; after the warm-up it falls linearly to 0.", above=0
  )
  num_train_epochs: float = setting(
    3.0,
    "Passes over the training data, each in a new order. With few rows a held-out loss that rises after "
    "some passes is usual: the best weights by the metric are kept, whatever comes later.",
    above=0,
    maximum=1000,
  )
  num_train_steps: int = setting(
    0,
    "Number of updates, such as 20 for a trial; above 0 it replaces --num_train_epochs.",
    minimum=0,
    # All are planned in memory.
    maximum=10**7,
  )
  num_warmup_steps: int | None = setting(
    None, "Number of updates of warm-up. Default: a tenth of the updates.", minimum=0
  )

  # The model. The rates of each task are in table 14 of the paper.
  albert_dropout: float | None = setting(
    None,
    "Dropout rate in the encoder (the paper's 'ALBERT DR'). Default: the configuration's rates.",
    minimum=0,
    below=1,
  )
  classifier_dropout: float = setting(
    0.1,
    "Dropout rate before the head (the paper's 'Classifier DR'); that of SQuAD 1.1 has none.",
    minimum=0,
    below=1,
  )

  freeze_encoder: bool = setting(
    False, "Train the head alone: the encoder and its pooler keep the weights that they start from."
  )

  # Several depths, `train_depths`: one pass, and answers that stop early.
  depth_distillation: float = setting(
    0.0,
    "Weight of the divergence of each depth of --train_depths from the deepest.",
    minimum=0,
  )

  # The run.
  save_checkpoints_steps: int = setting(
    0,
    "Updates between two evaluations, which keep the best weights; 0: evaluate after each epoch. A "
    "number above all updates keeps the last weights.",
    minimum=0,
  )
  distribution: DistributionConfig = dataclasses.field(default_factory=DistributionConfig)

  def __post_init__(self) -> None:
    super().__post_init__()
    if not (self.do_train or self.do_eval or self.do_predict):
      raise UserError(
        "There must be something to do. Received: none of --do_train, --do_eval, --do_predict. "
        "Name one."
      )
    if self.depth_distillation and not self.train_depths:
      raise UserError(
        "Distillation is from the deepest of several depths to the others. Received: "
        f"--depth_distillation={self.depth_distillation} without --train_depths. Give both."
      )
    if not self.seeds or len(set(self.seeds)) != len(self.seeds):
      raise UserError(f"Seeds are different numbers. Received: {list(self.seeds)}.")

  def training_values(self) -> dict[str, Any]:
    """The settings on which the weights depend; a run continues only with the same ones.

    The numbers of replicas and micro-batches are left out, because they only change rounding and
    dropout masks.
    """
    values = self.to_dict()
    # All settings but these, so that a new one cannot be forgotten.
    for name in _WITHOUT_INFLUENCE:
      del values[name]
    # Of the devices, only the type of the products changes the weights.
    return values | {"mixed_precision": self.distribution.precision}


_WITHOUT_INFLUENCE = (
  "do_train", "do_eval", "do_predict", "seeds", "eval_batch_size", "gradient_accumulation_steps",
  "remat", "distribution",
)  # fmt: skip
