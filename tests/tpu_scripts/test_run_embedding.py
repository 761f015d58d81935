"""run_embedding.py as a user runs it: pairs with scores, and texts that belong together with hard negatives."""

import json

import numpy as np
import pytest
from support import tiny_run
from support.commands.script_runs import run_script

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.sentence_vectors import SentenceTask
from albert_tf.finetuning.tasks.text_tables import TextExample


def write_data(folder):
  """STS-B's files, in which a pair's score is the share of words in common; and triples."""
  rng = np.random.default_rng(0)
  (folder / "STS-B").mkdir()
  for split, rows in (("train", 48), ("dev", 16), ("test", 4)):
    lines = ["index\tsentence1\tsentence2\tscore"]
    for number in range(rows):
      first, common = rng.choice(tiny_run.WORDS, 6, replace=False), rng.integers(7)
      second = [*first[:common], *rng.choice(tiny_run.WORDS, 6 - common)]
      score = f"\t{5 * common / 6:.3f}" if split != "test" else ""
      lines.append(f"{number}\t{' '.join(first)}\t{' '.join(second)}{score}")
    lines[0] = lines[0] if split != "test" else "index\tsentence1\tsentence2"
    (folder / "STS-B" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
  words = zip(tiny_run.WORDS, tiny_run.WORDS[::-1], strict=True)
  rows = [{"q": word, "a": f"{word} {word}", "not": other} for word, other in words]
  (folder / "triples.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.slow
def test_scores_then_triples_then_scores_again(tmp_path):
  tiny_run.write_pretrained(tmp_path / "pretrained")
  write_data(tmp_path)
  stsb = ["--task_name=sts-b", f"--data_dir={tmp_path}", "--noprogress", "--num_virtual_devices=2"]
  stsb += ["--distribution=one_device"]  # TensorFlow 2.15 has one group of devices a process.
  train = [f"--init_checkpoint={tmp_path}/pretrained", "--do_train", "--max_seq_length=24"]
  train += ["--train_batch_size=10", "--num_train_epochs=2", "--learning_rate=0.003"]
  train += ["--noprogress", "--num_virtual_devices=2"]
  triples = [*train, f"--train_file={tmp_path}/triples.jsonl", "--text_columns=q,a"]
  triples += ["--negative_column=not"]
  commands = [
    [*stsb, *train, f"--output_dir={tmp_path}/scores", "--do_predict"],
    # A last batch that is not full.
    [*triples, f"--output_dir={tmp_path}/out", "--normalize=false", "--temperature=0.1"],
    [*stsb, f"--init_checkpoint={tmp_path}/out", f"--output_dir={tmp_path}/again", "--do_eval"],
  ]
  refusals = {
    "an update is computed in one batch": [*triples, "--gradient_accumulation_steps=2"],
    # Flags that the other data need.
    "--train_file": [*stsb, *train, f"--train_file={tmp_path}/triples.jsonl"],
    "--temperature=0.1": [*stsb, *train, "--temperature=0.1"],
    "--max_score=5": [*triples, "--max_score=5"],
  }
  refused = [[*flags, f"--output_dir={tmp_path}/x"] for flags in refusals.values()]
  scores, out, again, *refused = run_script("run_embedding", commands + refused)
  assert scores.status == 0, scores.stderr
  results = json.loads((tmp_path / "scores/results.json").read_text())
  assert results["best_metric"] == "spearman"
  assert f"spearman: {results['spearman']:.4f}" in scores.stdout
  assert len((tmp_path / "scores/predictions_test.tsv").read_text().splitlines()) == 5
  assert out.status == 0, out.stderr
  results = json.loads((tmp_path / "out/results.json").read_text())
  assert {"accuracy", "mrr"} <= results.keys()
  assert json.loads((tmp_path / "out/run.json").read_text())["identity"]["temperature"] == 0.1
  assert again.status == 0, again.stderr
  assert "spearman" in json.loads((tmp_path / "again/results.json").read_text())
  task = json.loads((tmp_path / "again/task.json").read_text())
  assert not task["normalize"]  # As it was trained.
  for message, done in zip(refusals, refused, strict=True):
    assert (done.status, message in done.stderr) == (2, True), done


def task(*examples, **options):
  spec = TaskSpec(kind="sentence_vectors", name="custom")
  return SentenceTask(spec, {"eval": examples}, tokenizer=None, **options)


def test_evaluations():
  """Ranks of a text's positive among all positives, where equal ones count once; correlation with scores."""
  pairs, labels = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")], ["4.5", "2.5", "4", "3"]
  vectors = [[[1, 0], [3, 0]], [[1, 1], [0, 9]], [[2, 1], [3, 0]], [[0, 1], [-1, 1]]]
  vectors = np.array(vectors, float)
  ranked = task(*(TextExample("", *pair) for pair in pairs))
  assert ranked.best_metric == "accuracy"
  # The first and third find "x"; the second has x, y and z at 45, 45 and 90 degrees; the fourth y before z.
  assert ranked.evaluate({"logits": vectors}) == {"accuracy": 0.75, "mrr": 0.875}
  examples = [TextExample("", *pair, label) for pair, label in zip(pairs, labels, strict=True)]
  scored = task(*examples, max_score=5.0)
  found, cosines = scored.evaluate({"logits": vectors}), np.array([1, 0.5**0.5, 0.8**0.5, 0.5**0.5])
  assert found["loss"] == pytest.approx(np.mean((cosines - [0.9, 0.5, 0.8, 0.6]) ** 2))
  assert found["spearman"] == pytest.approx(0.9486833)  # Two cosines are equal.


def test_rows_that_cannot_be_compared():
  with pytest.raises(UserError, match=r"all its texts. Received: \('a', 'b', ' '\), row 7 of eval"):
    task(TextExample("7", "a", "b", None, " "))
  high = task(TextExample("7", "a", "b", "2"), TextExample("8", "a", "b", "6"), max_score=5.0)
  with pytest.raises(UserError, match=r"Received: 6, not from 0 to --max_score=5, .* the id 8"):
    high.gold("eval")
