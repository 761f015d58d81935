"""The engine: one task, one set of weights to start from, one or several seeds, with Keras' `model.fit`."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import os
from typing import Any

from absl import logging
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import read_bundle
from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning import initialize
from albert_tf.finetuning.engine import record as recording
from albert_tf.finetuning.engine import results as reporting
from albert_tf.finetuning.engine import resume, train
from albert_tf.finetuning.engine.features import FeatureSet, class_factors
from albert_tf.finetuning.engine.predict import Evaluation
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FineTuningTask, Outputs
from albert_tf.training.distribution import Consensus, is_chief, make_strategy, precision_warning

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
) -> reporting.FineTuned:
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
    The results, and the model with the best weights; of several seeds the best one's.

  Raises:
    UserError: the weights do not fit, or the directory holds something else.
  """
  strategy = strategy or make_strategy(settings.distribution)
  if settings.do_train and (slow := precision_warning(settings.mixed_precision, strategy)):
    logging.warning("%s", slow)
  record = recording.Record(task=task, settings=settings, start=start, flags_text=flags_text)
  engine = _Engine(record, strategy, output_dir=output_dir, callbacks=callbacks)
  Consensus(strategy).on_chief(engine.chief, engine.begin)  # Before other workers look for what is there.
  runs = [engine.run_seed(seed) for seed in settings.seeds]
  results = engine.finish_seeds(runs) if len(runs) > 1 else dict(runs[0].results)
  elsewhere = start.checkpoint if recording.best_weights(output_dir) is None else None
  return reporting.FineTuned(results=results, checkpoint=elsewhere.directory if elsewhere else output_dir)


class _Engine:
  """What the seeds of a run share: the record, the strategy and the features."""

  def __init__(
    self,
    record: recording.Record,
    strategy: tf.distribute.Strategy,
    *,
    output_dir: str,
    callbacks: Sequence[Any],
  ):
    self._record = record
    self._task, self._settings, self._start = record.task, record.settings, record.start
    self._output_dir = output_dir
    self._strategy = strategy
    self._callbacks = callbacks
    self._consensus = Consensus(strategy)
    self.chief = is_chief(strategy)
    self._evaluates = self._settings.do_train or self._settings.do_eval
    self._source = recording.recorded_source(output_dir) or self._start.source
    self._several = len(self._settings.seeds) > 1

  def begin(self) -> None:
    """Refuses what cannot be, before anything is written; one of several seeds is marked, should it be killed."""
    directory = self._output_dir
    self._record.check(directory)
    train.check_model(self._task, self._settings, self._start)
    if self._settings.do_train:
      train.check(self._task, self._settings, self._train, strategy=self._strategy)
    recording.check_content(directory, self._content)
    marked = files.exists(os.path.join(directory, recording.RUN_FILE))
    if self._several and self._settings.do_train and not marked:
      self._record.mark(directory, self._content)

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
    factors = class_factors(features.labels, self._task.spec.label_names, self._settings.class_weights)
    return dataclasses.replace(features, factors=factors)

  @functools.cached_property
  def _splits(self) -> dict[str, FeatureSet]:
    """Every split that is to be evaluated or predicted, evaluation first."""
    task, predicts = self._task, self._settings.do_predict
    splits: dict[str, FeatureSet] = {}
    if self._evaluates:
      splits["eval"] = task.eval_features()
    test = task.test_features() if predicts else None
    if test is not None:
      splits["test"] = test
    for name, features in task.more_splits().items():
      if self._evaluates if name.startswith("eval") else predicts:
        splits[name] = features
    if predicts and not any(name.startswith("test") for name in splits):
      raise UserError(
        f"--do_predict needs examples to predict. Received: no test data for {task.spec.name}. Name the file, or "
        "leave --do_predict out."
      )
    return splits

  def run_seed(self, seed: int) -> _SeedRun:
    """Trains one seed unless it is finished, then evaluates and predicts with its best weights."""
    task, settings = self._task, self._settings
    directory = os.path.join(self._output_dir, f"seed_{seed}") if self._several else self._output_dir
    splits = self._splits  # What is wrong with the data is said before anything is built.
    if self._several:
      place = settings.seeds.index(seed) + 1
      logging.info("seed %d, %d of %d; --seeds chooses which are trained", seed, place, len(settings.seeds))
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = train.build_model(task, settings, start=self._start, strategy=self._strategy)
    predict = train.make_predictor(model, task, settings, strategy=self._strategy)
    earlier = self._finished(directory)
    # Of all workers, and before one of them writes what another still reads.
    trains = settings.do_train and self._consensus.any(earlier is None)
    keep = earlier is not None and not trains  # What training recorded stays.
    made: dict[str, Outputs] = {}
    if trains:
      if self.chief:
        self._record.write(directory, model.config, self._content)
        if not resume.has_state(directory):  # Of a training that was killed; another one is about to begin.
          recording.remove(directory, "checkpoints", recording.RESULTS_FILE)
      initialize.load_encoder_weights(model, self._start, seed=seed)
      # Each worker has its own, equal but for rounding; whether training goes on is the chief's decision.
      evaluation = Evaluation(
        predict, splits["eval"], lambda outputs: self._consensus.of_chief(task.evaluate(outputs))
      )
      trained = train.train(
        model,
        task,
        settings,
        seed=seed,
        features=self._train,
        evaluate=evaluation,
        on_best=evaluation.keep,
        strategy=self._strategy,
        directory=directory,
        writes=self.chief,
        callbacks=self._callbacks,
      )
      earlier = {**dataclasses.asdict(trained), "seed": seed}
      if evaluation.best is not None:
        made["eval"] = evaluation.best
    else:
      self._load_finished(model, directory, seed)
      if self.chief and not files.exists(os.path.join(directory, recording.RUN_FILE)):
        self._record.write(directory, model.config, self._content)
    for name, features in splits.items():
      if name not in made:
        made[name] = predict(features, name=name)
    metrics = self._metrics(made)
    whole = {**reporting.head(task, self._source), **(earlier or {"seed": seed}), **metrics}
    if self.chief:
      if not keep:
        task.spec.settled(metrics).save(directory)
      self._write_outputs(made, directory, metrics)
      reporting.write(directory, self._record, whole, source=self._source, keep_card=keep)
      recording.remove(directory, recording.STATE)  # Three times the size of the weights.
    return _SeedRun(
      seed=seed, directory=directory, results=whole, metrics=metrics, outputs=made, trained=trains
    )

  def finish_seeds(self, runs: Sequence[_SeedRun]) -> dict[str, Any]:
    """The results of several seeds; the best one's model becomes that of the whole run."""
    before = recording.read_results(self._output_dir)
    trained = any(run.trained for run in runs)
    head = reporting.head(self._task, self._source)
    results = head | reporting.summarize(
      {run.seed: {k: v for k, v in run.results.items() if k not in head} for run in runs},
      {run.seed: run.metrics for run in runs} if self._evaluates else {},
      best_metric=self._task.best_metric,
      best_seed=None if trained else before.get("best_seed"),
    )
    if self._settings.ensemble:
      results["ensemble"] = self._finish_ensemble(runs, os.path.join(self._output_dir, "ensemble"))
    if self.chief:
      best_seed = results.get("best_seed", before.get("best_seed"))
      best = next((run for run in runs if run.seed == best_seed), runs[0])
      self._publish(best, trained=trained, same_seed=before.get("best_seed") == best.seed)
      results = {**({} if self._evaluates else reporting.without_test_scores(before)), **results}
      keep = bool(before) and not trained
      reporting.write(self._output_dir, self._record, results, source=self._source, keep_card=keep)
    return results

  def _finish_ensemble(self, runs: Sequence[_SeedRun], directory: str) -> dict[str, float]:
    """Metrics and predictions of the mean of all seeds' logits."""
    made = {name: self._task.average([run.outputs[name] for run in runs]) for name in runs[0].outputs}
    metrics = self._metrics(made)
    if self.chief:
      files.makedirs(directory)
      self._write_outputs(made, directory, metrics)
    return metrics

  def _publish(self, best: _SeedRun, *, trained: bool, same_seed: bool) -> None:
    """Makes one seed's model that of the whole run, with run.json and flags.txt beside it."""
    directory = self._output_dir
    files.makedirs(directory)
    kept = not trained and recording.best_weights(directory) is not None
    recording.copy_run(
      best.directory, directory, keep_weights=kept, keep_export=same_seed and not best.trained
    )
    if not kept:
      config = AlbertConfig.from_json_file(os.path.join(best.directory, recording.CONFIG_FILE))
      self._record.write(directory, config, self._content)
      TaskSpec.load(best.directory).save(directory)  # With what that seed's evaluation found out.

  def _metrics(self, made: Mapping[str, Outputs]) -> dict[str, float]:
    """Those of "eval" under their names, those of other splits behind the split's."""
    metrics = self._task.evaluate(made["eval"]) if "eval" in made else {}
    for name, values in made.items():
      if name != "eval" and (name.startswith("eval") or self._splits[name].labels is not None):
        found = self._task.evaluate(values, name)
        metrics |= {f"{name.removeprefix('eval_')}_{key}": value for key, value in found.items()}
    return self._consensus.of_chief({key: float(value) for key, value in metrics.items()})

  def _write_outputs(self, made: Mapping[str, Outputs], directory: str, metrics: Mapping[str, float]) -> None:
    for name, values in made.items():
      self._task.write_predictions(values, name, directory, spec=self._task.spec.settled(metrics))
    if "eval" in made:
      self._task.plot(made["eval"], os.path.join(directory, PLOT_FILE))

  def _finished(self, directory: str) -> dict[str, Any] | None:
    """What an earlier command found of these weights and this one does not find anew."""
    results = recording.read_results(directory)
    if not results or recording.best_weights(directory) is None:
      return None
    if not self._evaluates:  # Prediction alone adds to what is known of these weights.
      return reporting.without_test_scores(results)
    kept = {field.name for field in dataclasses.fields(train.Trained)} | {"seed"}
    return {key: value for key, value in results.items() if key in kept}

  def _load_finished(self, model: Any, directory: str, seed: int) -> None:
    best = recording.best_weights(directory)
    if best is not None:
      if self._settings.do_train:
        logging.info("seed %d finished earlier in %s and is not trained again", seed, directory)
      initialize.load_all_weights(model, read_bundle(best), source=best)
    elif self._several or self._start.checkpoint is None:
      raise UserError(
        f"Without --do_train the weights must be there. Received: {directory} without {recording.BEST}. Train first."
      )
    else:
      initialize.load_all_weights(model, self._start.checkpoint.variables, source=self._start.source)
