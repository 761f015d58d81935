"""SQuAD with the engine: the original's loss and checkpoint, the files, and the choice of the checkpoint."""

import dataclasses
import json

import numpy as np
import pytest
from reference.squad import span_loss, squad2_loss
from support.goldens import SPM_MODEL, TINY_CONFIG, golden_checkpoint
from support.task_files import write_squad
from support.tiny_finetuning import QUICK
from support.tiny_step import EAGER_INPUT, eagerly
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.errors import UserError
from albert_tf.finetuning.run import fine_tune
from albert_tf.finetuning.tasks.squad.read import read_splits
from albert_tf.finetuning.tasks.squad.settings import SquadFiles, SquadSettings
from albert_tf.finetuning.tasks.squad.task import SquadTask
from albert_tf.tokenization import AlbertTokenizer

SIZES = SquadSettings(max_seq_length=128, max_query_length=24, doc_stride=64)
SYLLABLES = [first + last for first in "bdfklmr" for last in "aiou"]
# Enough not to repeat one.
WORDS = [one + two for one in SYLLABLES for two in SYLLABLES if one != two]


@pytest.fixture(scope="module")
def tokenizer():
  return AlbertTokenizer.from_pretrained(SPM_MODEL)


def write(path, articles, **changes):
  """A file of six questions an article, two of them impossible in 2.0."""
  write_squad(path, articles=articles, words=WORDS, **changes)
  return str(path)


def compiled_loss(task, labels, outputs):
  """The loss that Keras' `compile` makes from the task's losses and weights."""
  losses, weights = task.loss(), task.loss_weights
  assert losses.keys() == weights.keys() == labels.keys()
  return sum(weights[k] * tf.reduce_mean(losses[k](labels[k], outputs[k])) for k in losses)


def test_losses_are_the_originals():
  rng = np.random.default_rng(0)
  starts, ends = np.array([3, 0, 5]), np.array([4, 0, 5])
  impossible = np.array([0.0, 1.0, 0.0], np.float32)
  logits = {name: tf.constant(rng.normal(size=(3, 7)), tf.float32) for name in ("start", "end")}
  one, two = (
    SquadTask({}, version=version, settings=SIZES, tokenizer=None) for version in ("1.1", "2.0")
  )
  outputs = {f"{name}_logits": value for name, value in logits.items()}
  ours = compiled_loss(one, {"start_logits": starts, "end_logits": ends}, outputs)
  np.testing.assert_allclose(ours, span_loss(*logits.values(), starts, ends), rtol=1e-6)
  outputs = {f"{name}_log_probs": tf.nn.log_softmax(value) for name, value in logits.items()}
  outputs["cls_logits"] = tf.constant([0.3, -2.0, 1.0])
  labels = {"start_log_probs": starts, "end_log_probs": ends, "cls_logits": impossible}
  ours = compiled_loss(two, labels, outputs)
  np.testing.assert_allclose(ours, squad2_loss(outputs, starts, ends, impossible), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_the_originals_checkpoint_answers(tmp_path, tokenizer):
  """Predicts with a checkpoint of the original's code, for files with and without answers."""
  start = read_checkpoint(golden_checkpoint("tiny_squad_v2"), config_file=TINY_CONFIG)
  answers = {}
  for answered in (True, False):
    path = write(tmp_path / "a.json", 2, answers=answered)
    data = read_splits(SquadFiles(squad_version="2.0", predict_file=path))
    task = SquadTask(data, version="2.0", settings=SIZES, tokenizer=tokenizer, threshold=0.0)
    does = {"do_train": False, "do_eval": answered, "do_predict": not answered}
    settings = dataclasses.replace(QUICK, **does)
    run = tmp_path / f"run-{answered}"
    with eagerly():
      results = fine_tune(task, settings, start=start, output_dir=str(run))
    assert ("f1" in results) == answered
    answers[answered] = json.loads((run / "predictions.json").read_text(encoding="utf-8"))
    assert len(json.loads((run / "null_odds.json").read_text())) == 12
  assert answers[True] == answers[False]


def test_training_windows(tmp_path, tokenizer, caplog):
  small = SquadSettings(max_seq_length=64, max_query_length=24, doc_stride=16)
  path = write(tmp_path / "a.json", 5)
  document = json.loads((tmp_path / "a.json").read_text())
  document["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["text"] = "nowhere to be found"
  (tmp_path / "a.json").write_text(json.dumps(document))
  files = SquadFiles(
    squad_version="2.0", train_file=path, predict_file=path, selection_split="predict"
  )
  task = SquadTask(read_splits(files), version="2.0", settings=small, tokenizer=tokenizer)
  assert "1 answers are not at their answer_start and teach nothing: ['a-0-0-0']" in caplog.text
  features = task.splits["train"]
  assert np.flatnonzero(features.missing).tolist() == [0]
  every = task.features("train")
  lacking = np.asarray(every.labels["cls_logits"])
  assert 0 < lacking.sum() < len(every)
  x, y = every.padded(64)
  assert (x["p_mask"][x["input_mask"] == 0] == 1).all()
  assert x["start_positions"].tolist() == y["start_log_probs"].tolist()
  assert set(y) == {"start_log_probs", "end_log_probs", "cls_logits"}


def test_training_questions_that_all_have_answers_are_told(tmp_path, tokenizer, caplog):
  """With 2.0 the model would never give the empty answer."""
  path = write(tmp_path / "a.json", 5)
  document = json.loads((tmp_path / "a.json").read_text())
  for told in (False, True):
    files = SquadFiles(
      squad_version="2.0", train_file=path, predict_file=path, selection_split="predict"
    )
    caplog.clear()
    SquadTask(read_splits(files), version="2.0", settings=SIZES, tokenizer=tokenizer)
    assert ("No question is without an answer" in caplog.text) == told
    for article in document["data"]:
      for paragraph in article["paragraphs"]:
        paragraph["qas"] = [each for each in paragraph["qas"] if each["answers"]]
    (tmp_path / "a.json").write_text(json.dumps(document))


def fake_outputs(features, null_scores):
  """Outputs for windows: the beam is the gold answer, the null scores are given by question."""
  starts, ends, _ = features.positions
  questions = [features.data.questions[row] for row in features.windows.row]
  return {
    "cls_logits": np.array(list(map(null_scores, questions))),
    "start_top_index": starts[:, np.newaxis],
    "end_top_index": ends[:, np.newaxis],
    "start_top_log_probs": np.full((len(features), 1), -0.1),
    "end_top_log_probs": np.full((len(features), 1), -0.2),
  }


def test_held_out_questions_choose_and_others_are_reported(tmp_path, tokenizer):
  """Null scores of the reported file are 10 higher, so its best threshold would differ."""
  train, predict = write(tmp_path / "train.json", 10), write(tmp_path / "predict.json", 6)
  files = SquadFiles(squad_version="2.0", train_file=train, predict_file=predict, eval_fraction=0.3)
  task = SquadTask(read_splits(files), version="2.0", settings=SIZES, tokenizer=tokenizer)
  counts = {split: len(each.data.questions) for split, each in task.splits.items()}
  assert (counts["train"] + counts["eval"], counts["test"]) == (60, 36)
  train_contexts, eval_contexts = (
    {question.context for question in task.splits[split].data.questions}
    for split in ("train", "eval")
  )
  assert train_contexts.isdisjoint(eval_contexts)
  outputs = {
    "eval": fake_outputs(task.splits["eval"], lambda q: -1.0 if q.answers else 1.0),
    "test": fake_outputs(task.splits["test"], lambda q: 9.0 if q.answers else 11.0),
  }
  report = task.evaluate(outputs["eval"])
  assert report["null_score_diff_threshold"] == 0.0
  assert report["f1"] > 97.0  # A few answers are longer than 30 pieces, or less than theirs.
  report = task.evaluate(outputs["test"], "test")
  assert (report["HasAns_f1"], report["NoAns_f1"], report["best_f1_thresh"]) == (0.0, 100.0, 10.0)
  assert report["best_f1"] > 97.0
  # Asked for, the reported questions choose: as in the original.
  same = dataclasses.replace(files, selection_split="predict")
  task = SquadTask(read_splits(same), version="2.0", settings=SIZES, tokenizer=tokenizer)
  counts = {split: len(each.data.questions) for split, each in task.splits.items()}
  assert counts == {"train": 60, "eval": 36}
  report = task.evaluate(outputs["test"])
  assert report["f1"] == pytest.approx(report["best_f1"])
  assert report["null_score_diff_threshold"] == 10.0


@pytest.mark.slow
@pytest.mark.filterwarnings(EAGER_INPUT)
def test_the_one_set_of_predictions_is_named(tmp_path, tokenizer):
  """It is of `data.test` where results.json has it, else of `data.eval`."""
  paths = {name: write(tmp_path / f"{name}.json", 1, seed=n) for n, name in enumerate("abc")}
  train = write(tmp_path / "train.json", 2)
  start = read_checkpoint(golden_checkpoint("tiny_squad_v2"), config_file=TINY_CONFIG)
  run = tmp_path / "run"
  settings = dataclasses.replace(QUICK, num_train_steps=1, save_checkpoints_steps=0)

  def command(start=start, *, threshold=None, **sources):
    data = read_splits(SquadFiles(squad_version="2.0", eval_fraction=0.5, **sources))
    options = {"settings": SIZES, "tokenizer": tokenizer, "threshold": threshold}
    task = SquadTask(data, version="2.0", **options)
    does = {"do_train": "train_file" in sources, "do_predict": "predict_file" in sources}
    with eagerly():
      of_run = dataclasses.replace(settings, **does, do_eval=False)
      results = fine_tune(task, of_run, start=start, output_dir=str(run))
    answered = {key.partition("-")[0] for key in json.loads((run / "predictions.json").read_text())}
    split = "test" if "test" in results["data"] else "eval"
    assert results["data"][split]["file"] == str(tmp_path / f"{answered.pop()}.json")
    assert ("test_f1" in results) <= ("test" in results["data"])
    return results

  trained = command(train_file=train, predict_file=paths["a"])
  assert trained["data"].keys() == {"eval", "test"}
  assert "test" not in command(train_file=train)["data"]
  own = read_checkpoint(str(run))
  unanswered = write(tmp_path / "c.json", 1, answers=False)
  assert "test_f1" not in command(own, threshold=0.0, predict_file=unanswered)
  with pytest.raises(UserError, match=r"b\.json \(.*train\.json \(.*--init_checkpoint"):
    command(own, threshold=0.0, predict_file=paths["b"])
