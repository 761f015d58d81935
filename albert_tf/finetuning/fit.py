"""The engine: one task, one set of weights to start from, one or several seeds, with Keras' `model.fit`."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
from typing import Any

from absl import logging
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import bundle
from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.finetuning import initialize, one_seed, outputs, resumption, run_directory
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.task import FineTuningTask, Outputs
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.training.distribution import Consensus, is_chief, make_strategy

PLOT_FILE = "evaluation.png"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SeedRun:
  """A seed's results and, for the ensemble, its outputs of every split."""

  seed: int
  directory: str
  results: Mapping[str, Any]
  metrics: Mapping[str, float]
  outputs: Mapping[str, Outputs]
  trained: bool  # By this command.


def fine_tune(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: Start,
  output_dir: str,
  flags_text: str = "",
  callbacks: Sequence[Any] = (),
  strategy: tf.distribute.Strategy | None = None,
) -> dict[str, Any]:
  """Trains (`do_train`), evaluates (`do_eval`), predicts (`do_predict`) and leaves a fine-tuned run directory.

  A seed that finished before is not trained again; one that was killed goes on from its last evaluation, to the same
  weights. Without `do_train` the weights are those of `output_dir`, or, if that is new, the fine-tuned ones of `start`.

  Args:
    task: the task on its data, made with `start.tokenizer`.
    settings: how.
    start: configuration, tokenizer and weights, of `initialize.read_start`.
    output_dir: the run directory; new, empty, or the same run's.
    flags_text: the command's resolved flags, written to flags.txt.
    callbacks: Keras callbacks beside the engine's own.
    strategy: instead of the one that `settings.distribution` says.

  Returns:
    What `results.json` holds.

  Raises:
    UserError: the weights do not fit, or the directory holds something else.
  """
  strategy = strategy or make_strategy(settings.distribution)
  engine = _Engine(
    task, settings, start, strategy, output_dir=output_dir, flags_text=flags_text, callbacks=callbacks
  )
  Consensus(strategy).on_chief(engine.chief, engine.begin)  # Before other workers look for what is there.
  runs = [
    engine.run_seed(seed, run_directory.seed_directory(output_dir, settings, seed)) for seed in settings.seeds
  ]
  before = run_directory.read_results(output_dir)
  trained = any(run.trained for run in runs)
  results = outputs.summarize(
    task,
    engine.source,
    [(run.seed, run.results, run.metrics) for run in runs],
    evaluated=engine.evaluates,
    best_seed=None if trained else before.get("best_seed"),
  )
  if len(runs) > 1:
    if settings.ensemble:
      results["ensemble"] = engine.finish_ensemble(runs, os.path.join(output_dir, "ensemble"))
    if engine.chief:
      best_seed = results.get("best_seed", before.get("best_seed"))
      best = next((run for run in runs if run.seed == best_seed), runs[0])
      engine.publish(best, trained=trained, same_seed=before.get("best_seed") == best.seed)
  if engine.chief:
    results = {**({} if engine.evaluates else outputs.without_test_scores(before)), **results}
    outputs.write_results(
      output_dir, task, settings, results, source=engine.source, keep_card=bool(before) and not trained
    )
  return results


class _Engine:
  """What the seeds of a run share: the strategy and the features."""

  def __init__(
    self,
    task: FineTuningTask,
    settings: FineTuneSettings,
    start: Start,
    strategy: tf.distribute.Strategy,
    *,
    output_dir: str,
    flags_text: str,
    callbacks: Sequence[Any],
  ):
    self._task = task
    self._output_dir = output_dir
    self._settings = settings
    self._start = start
    self._strategy = strategy
    self._flags_text = flags_text
    self._callbacks = callbacks
    self._consensus = Consensus(strategy)
    self.chief = is_chief(strategy)
    self.evaluates = settings.do_train or settings.do_eval
    self.source = run_directory.recorded_source(output_dir) or start.source

  def begin(self) -> None:
    """Refuses a directory of something else; one of several seeds is marked as this run's, should it be killed."""
    directory, task, settings, start = self._output_dir, self._task, self._settings, self._start
    run_directory.check(directory, task, settings, start)
    run_directory.check_content(directory, self._content)
    several = settings.do_train and len(settings.seeds) > 1
    if several and not files.exists(os.path.join(directory, run_directory.RUN_FILE)):
      run_directory.write_record(directory, task, settings, start, content=self._content)

  @functools.cached_property
  def _content(self) -> dict[str, str]:
    """What the weights depend on of the examples themselves."""
    if not self._settings.do_train:
      return {}
    return {"train": self._train.fingerprint(), "eval": self._splits["eval"].fingerprint()}

  @functools.cached_property
  def _train(self) -> FeatureSet:
    features = self._task.train_features()
    if features.labels is None:
      raise UserError("Training needs labels. Received: training examples without. Name the label column.")
    return features

  @functools.cached_property
  def _splits(self) -> dict[str, FeatureSet]:
    """Every split that is to be evaluated or predicted, evaluation first."""
    task, settings = self._task, self._settings
    splits: dict[str, FeatureSet] = {}
    if self.evaluates:
      splits["eval"] = task.eval_features()
    if settings.do_predict:
      test = task.test_features()
      if test is not None:
        splits["test"] = test
    for name, features in task.more_splits().items():
      if self.evaluates if name.startswith("eval") else settings.do_predict:
        splits[name] = features
    if settings.do_predict and not any(name.startswith("test") for name in splits):
      raise UserError(
        f"--do_predict needs examples to predict. Received: no test data for {task.spec.name}. Name the file, or "
        "leave --do_predict out."
      )
    return splits

  def run_seed(self, seed: int, directory: str) -> _SeedRun:
    """Trains one seed unless it is finished, then evaluates and predicts with its best weights."""
    task, settings = self._task, self._settings
    splits = self._splits  # What is wrong with the data is said before anything is built.
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = one_seed.build_model(task, settings, start=self._start, strategy=self._strategy)
    predict = one_seed.make_predictor(model, task, settings, strategy=self._strategy)
    earlier = self._finished(directory)
    # Of all workers, and before one of them writes what another still reads.
    trains = settings.do_train and self._consensus.any(earlier is None)
    keep = earlier is not None and not trains  # What training recorded stays.
    if trains:
      if self.chief:
        self._write_identity(directory, model.config)
        if not resumption.has_state(directory):
          run_directory.remove_unfinished(directory)
      initialize.load_encoder_weights(model, self._start, seed=seed)
      trained = one_seed.train(
        model,
        task,
        settings,
        seed=seed,
        features=self._train,
        # Each worker has its own, equal but for rounding; whether training goes on is the chief's decision.
        evaluate=lambda: self._consensus.of_chief(task.evaluate(predict(splits["eval"]))),
        strategy=self._strategy,
        directory=directory,
        writes=self.chief,
        callbacks=self._callbacks,
      )
      earlier = {**dataclasses.asdict(trained), "seed": seed}
    else:
      self._load_finished(model, directory, seed)
      if self.chief and not files.exists(os.path.join(directory, run_directory.RUN_FILE)):
        self._write_identity(directory, model.config)
    made = {name: predict(features, name=name) for name, features in splits.items()}
    metrics = self._metrics(made)
    results = {**(earlier or {"seed": seed}), **metrics}
    if self.chief:
      if not keep:
        task.spec.save(directory)  # With what evaluation found out.
      self._write_outputs(made, directory)
      outputs.write_seed(directory, task, settings, results, source=self.source, keep_card=keep)
      resumption.remove_state(directory)
    return _SeedRun(
      seed=seed, directory=directory, results=results, metrics=metrics, outputs=made, trained=trains
    )

  def finish_ensemble(self, runs: Sequence[_SeedRun], directory: str) -> dict[str, float]:
    """Metrics and predictions of the mean of all seeds' logits."""
    made = {name: self._task.average([run.outputs[name] for run in runs]) for name in runs[0].outputs}
    spec = self._task.spec
    metrics = self._metrics(made)
    if self.chief:
      files.makedirs(directory)
      self._write_outputs(made, directory)
    self._task.spec = spec
    return metrics

  def publish(self, best: _SeedRun, *, trained: bool, same_seed: bool) -> None:
    """Makes one seed's model that of the whole run, with run.json and flags.txt beside it."""
    directory = self._output_dir
    files.makedirs(directory)
    kept = not trained and bundle.latest_bundle(os.path.join(directory, resumption.BEST)) is not None
    run_directory.copy_run(
      best.directory, directory, keep_weights=kept, keep_export=same_seed and not best.trained
    )
    if not kept:
      config = AlbertConfig.from_json_file(os.path.join(best.directory, run_directory.CONFIG_FILE))
      self._task.spec = TaskSpec.load(best.directory)  # With what that seed's evaluation found out.
      self._write_identity(directory, config)

  def _write_identity(self, directory: str, config: AlbertConfig) -> None:
    run_directory.write(
      directory,
      self._task,
      self._settings,
      self._start,
      config=config,
      flags_text=self._flags_text,
      content=self._content,
    )

  def _metrics(self, made: Mapping[str, Outputs]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, values in made.items():
      if name.startswith("eval") and name != "eval":
        prefix = name.removeprefix("eval_")
        metrics |= {f"{prefix}_{key}": value for key, value in self._task.evaluate(values, name).items()}
      elif name.startswith("test") and self._splits[name].labels is not None:
        metrics |= {f"{name}_{key}": value for key, value in self._task.evaluate(values, name).items()}
    if "eval" in made:  # Last: what it finds out for the specification stays.
      metrics = {**self._task.evaluate(made["eval"]), **metrics}
    return self._consensus.of_chief({key: float(value) for key, value in metrics.items()})

  def _write_outputs(self, made: Mapping[str, Outputs], directory: str) -> None:
    for name, values in made.items():
      self._task.write_predictions(values, name, directory)
    if "eval" in made:
      self._task.plot(made["eval"], os.path.join(directory, PLOT_FILE))

  def _finished(self, directory: str) -> dict[str, Any] | None:
    results = run_directory.read_results(directory)
    if not results or bundle.latest_bundle(os.path.join(directory, resumption.BEST)) is None:
      return None
    if not self.evaluates:  # Prediction alone adds to what is known of these weights.
      return outputs.without_test_scores(results)
    kept = {field.name for field in dataclasses.fields(one_seed.Trained)} | {"seed"}
    return {key: value for key, value in results.items() if key in kept}

  def _load_finished(self, model: Any, directory: str, seed: int) -> None:
    best = bundle.latest_bundle(os.path.join(directory, resumption.BEST))
    if best is not None:
      if self._settings.do_train:
        logging.info("seed %d finished earlier in %s and is not trained again", seed, directory)
      initialize.load_all_weights(model, bundle.read_bundle(best), source=best)
    elif len(self._settings.seeds) > 1 or self._start.checkpoint is None:
      raise UserError(
        f"Without --do_train the weights must be there. Received: {directory} without {resumption.BEST}. "
        "Train first."
      )
    else:
      initialize.load_all_weights(model, self._start.checkpoint.variables, source=self._start.source)
