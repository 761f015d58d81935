"""One run of a fine-tuning: what it was asked for, its sizes, model and directory.

`fit` takes it through its steps, and `ensemble` combines the directories of several.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import os
from typing import Any

import tensorflow as tf

from albert_tf import files, json_files
from albert_tf.checkpoints.bundle import latest_bundle
from albert_tf.compat import device_kind
from albert_tf.configs.task import RESULTS_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.batches import Batching
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask, fingerprint
from albert_tf.keras_api.task_model import TaskModel
from albert_tf.keras_api.tasks import CLASS_OF_KIND
from albert_tf.optim.keras_optimizers import AdamW, Lamb, WarmupPolynomialDecay
from albert_tf.runs import run_directory
from albert_tf.runs.distribution import Workers, precision_policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningRun:
  """The run of one seed, with its directory and record.

  Attributes:
    task, settings, start, strategy, output_dir, flags_text, callbacks: see `fit.fine_tune`.
    workers: the processes of the run.
    may_write: raises if another process has taken the directory.
    seed: one of the settings' seeds, for weights, order and dropout.
    features: split → examples, of the splits to train on, to evaluate and to predict.
    data: split → what the answers to it are of; see `results.describe_data`.
    identity: what must not change while a training is continued; empty without a training.
  """

  task: FineTuningTask
  settings: FineTuneSettings
  start: Start
  strategy: tf.distribute.Strategy
  workers: Workers
  output_dir: str = ""
  flags_text: str = ""
  callbacks: Sequence[Any] = ()
  may_write: Callable[[], None] = lambda: None
  seed: int = 0
  features: Mapping[str, FeatureSet] = dataclasses.field(default_factory=dict)
  data: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
  identity: dict[str, Any] = dataclasses.field(default_factory=dict)

  def of_all_seeds(self) -> list["FineTuningRun"]:
    """The run of each seed."""
    return [dataclasses.replace(self, seed=seed) for seed in self.settings.seeds]

  # ------------------------------------------------------------------ sizes

  @property
  def epoch_steps(self) -> int:
    """Updates of an epoch; the last batch is filled up."""
    return math.ceil(len(self.features["train"]) / self.settings.train_batch_size)

  @property
  def num_steps(self) -> int:
    """Updates of the run."""
    settings = self.settings
    return settings.num_train_steps or math.ceil(self.epoch_steps * settings.num_train_epochs)

  @property
  def evaluation_interval(self) -> int:
    """Updates from evaluation to evaluation."""
    return min(self.settings.eval_steps or self.epoch_steps, self.num_steps)

  @property
  def schedule(self) -> WarmupPolynomialDecay:
    """Linear warm-up, then polynomial decay to 0 at the last update."""
    settings = self.settings
    num_warmup_steps = settings.num_warmup_steps
    if num_warmup_steps < 0:
      num_warmup_steps = int(self.num_steps * settings.warmup_proportion)
    return WarmupPolynomialDecay(
      learning_rate=settings.learning_rate,
      num_train_steps=self.num_steps,
      num_warmup_steps=num_warmup_steps,
      poly_power=settings.poly_power,
    )

  def batching(self, batch_size: int) -> Batching:
    """Batches by `settings.bucket_multiple`; by default one static length on a TPU."""
    multiple = self.settings.bucket_multiple
    if multiple is None:
      # A TPU compiles the model anew for each length.
      multiple = 0 if device_kind(self.strategy) == "tpu" else 32
    length = self.task.spec.max_seq_length
    return Batching(batch_size=batch_size, max_length=length, bucket_multiple=multiple)

  # ------------------------------------------------------------------ model

  def build_model(self) -> TaskModel:
    """Makes the task's model, with random weights by `keras.utils.set_random_seed`."""
    settings = self.settings
    config = self.start.config
    if settings.dropout is not None:
      config = dataclasses.replace(
        config,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
      )
    trained = self.trained_task()
    # A training stores its own threshold at its end.
    spec = dataclasses.replace(self.task.spec, exit_threshold=trained.exit_threshold)
    of_training: dict[str, Any] = {
      "train_depths": settings.train_depths,
      "depth_distillation": settings.depth_distillation,
    }
    if not settings.do_train:
      # What the head of these weights was trained to read.
      of_training = {}
      spec = dataclasses.replace(spec, exit_depths=trained.exit_depths)
    head_options = dict(self.task.head_options)
    if self.task.spec.has_head_dropout:
      head_options["classifier_dropout"] = settings.classifier_dropout
    with self.strategy.scope():
      model = CLASS_OF_KIND[self.task.spec.kind](
        config,
        task=spec,
        head_options=head_options,
        encoder_options={"remat": settings.remat, "padding_at_end": True},
        **of_training,
        dtype=precision_policy(settings.distribution.precision),
      )
    model.gradient_accumulation_steps = settings.gradient_accumulation_steps
    if settings.freeze_encoder:
      model.encoder.trainable = False
    return model

  def trained_task(self) -> TaskSpec:
    """The task that the run's own weights, or else those of the start, were trained for."""
    folders = [self.directory]
    if self.start.checkpoint is not None:
      folders.append(self.start.checkpoint.directory)
    for folder in folders:
      trained = TaskSpec.find(folder)
      if trained is not None:
        return trained
    return self.task.spec

  def compile_model(self, model: Any) -> None:
    """Compiles the model with the task's loss, and AdamW or LAMB with clipping."""
    settings = self.settings
    optimizer_class = AdamW
    if settings.optimizer == "lamb":
      optimizer_class = Lamb
    with self.strategy.scope():
      model.compile(
        optimizer=optimizer_class(
          self.schedule,
          weight_decay_rate=settings.weight_decay,
          global_clipnorm=settings.clip_norm or None,  # 0: no limit.
        ),
        loss=self.task.loss(),
        loss_weights=self.task.loss_weights,
        jit_compile=settings.distribution.use_xla,
      )

  # ------------------------------------------------------------------ directory

  @property
  def directory(self) -> str:
    """The run directory; where there are several seeds, each has its own."""
    if len(self.settings.seeds) == 1:
      return self.output_dir
    return os.path.join(self.output_dir, f"seed_{self.seed}")

  @property
  def best_weights(self) -> str | None:
    """The bundle of the best weights; None if there are none."""
    return latest_bundle(os.path.join(self.directory, run_directory.BEST))

  def earlier_results(self) -> dict[str, Any]:
    """The results that an earlier command wrote; empty if a training is to begin or to go on."""
    if self.settings.do_train and self.best_weights is None:
      return {}
    return json_files.find(os.path.join(self.directory, RESULTS_FILE), data=dict)

  def check_directory(self) -> None:
    """Checks that the directory is new, empty or of this task, and that the weights fit the task.

    Raises:
      UserError: a check fails. Nothing is written.
    """
    self._check_layout()
    if self.directory != self.output_dir:
      beside = ("seed_", RESULTS_FILE, "saved_model")
      run_directory.check(self.output_dir, beside=beside)
      check_task(self.output_dir, self.task.spec)
    run_directory.check(self.directory)
    check_task(self.directory, self.task.spec)
    start = self.start
    if self.settings.do_train:
      return
    # The weights of another seed would be called those of this one.
    may_take_others = start.checkpoint is not None and self.directory == self.output_dir
    if self.best_weights is None and not may_take_others:
      raise UserError(
        "Without --do_train there must be weights, of several seeds those of each. Received: "
        f"{self.directory} without {run_directory.BEST}. Train first, or name --seeds that were "
        "trained; with weights of another run name one seed."
      )
    if start.checkpoint is None:
      return
    check_task(start.checkpoint.directory, self.task.spec)
    path = os.path.join(self.directory, run_directory.RUN_FILE)
    if not files.exists(path) or files.is_within(start.source, self.output_dir):
      return
    # The weights that it was trained from may be named again: its own are used. Without weights of
    # its own these are the ones that it was evaluated with.
    recorded = json_files.read(path, sources=dict)["sources"].get("init_checkpoint")
    if start.source != recorded:
      weights = f"those of {recorded}"
      if self.best_weights is not None:
        weights = "its own weights"
      raise UserError(
        f"A run directory has the answers of one set of weights. Received: {self.directory}, with "
        f"answers of {weights}, and {start.source}. Leave --init_checkpoint out, or choose another "
        "--output_dir."
      )

  def _check_layout(self) -> None:
    """Raises `UserError` if the directory holds one seed's files and several are asked for, or the reverse.

    Else files of one seed would lie beside the results of another.
    """
    seeds = ",".join(map(str, self.settings.seeds))
    if self.directory == self.output_dir:
      names = files.listdir(self.output_dir)
      found = [name.removeprefix("seed_") for name in names if name.startswith("seed_")]
      if found:
        raise UserError(
          "A run of several seeds is used with several. Received: --seeds="
          f"{seeds} for {self.output_dir}, which has seed_{', seed_'.join(found)}. Name its seeds, "
          f"--seeds={','.join(found)}, or choose another --output_dir."
        )
    elif files.exists(os.path.join(self.output_dir, run_directory.RUN_FILE)):
      path = os.path.join(self.output_dir, run_directory.RUN_FILE)
      identity = json_files.read(path, identity=dict)["identity"]
      if "seed" not in identity:
        # Of pretraining, or of an ensemble.
        run_directory.check(self.output_dir, {"seeds": list(self.settings.seeds)})
      seed = identity["seed"]
      folder = os.path.join(self.output_dir, f"seed_{seed}")
      raise UserError(
        "A directory holds the files of one seed, or a folder for each of several. Received: "
        f"--seeds={seeds} for {self.output_dir}, of seed {seed} alone. To add seeds, move all that "
        f"it holds into {folder}; else choose another --output_dir."
      )

  def training_identity(self) -> dict[str, Any]:
    """The identity of a training: task, settings, and the content of weights and examples."""
    spec = dataclasses.asdict(self.task.spec)
    # These are results of an evaluation.
    del spec["null_score_diff_threshold"], spec["thresholds"], spec["exit_threshold"]
    weights = "random"
    if self.start.checkpoint is not None:
      weights = fingerprint(sorted(self.start.checkpoint.variables.items()))
    content = {
      "content of init_checkpoint": weights,
      "content of train examples": self.features["train"].fingerprint(),
      "content of eval examples": self.features["eval"].fingerprint(),
    }
    return spec | self.settings.training_values() | dict(self.task.training_options) | content

  def write_record(self, model: TaskModel) -> None:
    """Writes run.json, flags.txt, the task, the configuration and the tokenizer."""
    record = {
      "identity": self.identity | {"seed": self.seed},
      "sources": {"init_checkpoint": self.start.source},
      "settings": dataclasses.replace(self.settings, seeds=(self.seed,)).to_dict(),
    }
    run_directory.write(
      self.directory,
      record,
      config=model.config,
      tokenizer=self.start.tokenizer,
      flags=self.flags_text,
    )
    model.task.save(self.directory)


def splits_to_run(task: FineTuningTask, *, evaluates: bool, predicts: bool) -> list[str]:
  """The splits to evaluate ("eval", "eval_…"), then those to predict ("test", "test_…").

  Without test data the former are predicted.
  """
  tests: list[str] = []
  if predicts:
    tests = [name for name in task.splits if name.startswith("test")]
  if tests and not evaluates:
    return tests
  return ["eval"] + [name for name in task.splits if name.startswith("eval_")] + tests


def check_task(directory: str, spec: TaskSpec) -> None:
  """Raises `UserError` if the directory is of a run of another task.

  A model of GLUE or RACE may be used for a table of one's own ("custom"), and the reverse.
  """
  before = TaskSpec.find(directory)
  if before is None:
    return
  # Names that transformers gives where a user gave none.
  unnamed = tuple(f"LABEL_{i}" for i in range(before.num_labels))
  for field in ("kind", "name", "label_names", "squad_version"):
    old = getattr(before, field)
    new = getattr(spec, field)
    is_own_table = field == "name" and "custom" in (old, new)
    if old != new and old != unnamed and not is_own_table:
      raise UserError(
        f"A fine-tuned run is for one task. Received: {directory} of the {before.kind} task "
        f"{before.name!r}, for {spec.name!r} ({field} {old!r} → {new!r}). Name a directory of this "
        "task, or a new one and train."
      )
