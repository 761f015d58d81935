"""Tables in a bucket, answered into it by a model in it."""

import json

import pytest
from support import tiny_run

from albert_tf.keras_api.tasks import open_model


@pytest.mark.slow
def test_model_table_and_answers_in_a_bucket(bucket, commands, tmp_path):
  run = tiny_run.write_pretrained(tmp_path / "run")
  open_model("encoder", run).export(str(tmp_path / "model/1"))
  bucket.put_folder(tmp_path / "model", "model")
  bucket.put("in/a.csv", b"text\nthe sky\ngreen grass\n")
  flags = {
    "saved_model": bucket.url("model"),
    "input": bucket.url("in/*.csv"),
    "outputs": "mean_output",
    "output": bucket.url("out/answers.jsonl"),
  }
  done = commands.run("tpu_scripts/predict.py", **flags)
  assert done.status == 0, done.stderr
  assert bucket.names("out/") == ["out/answers.jsonl"]
  rows = [json.loads(line) for line in bucket.get("out/answers.jsonl").splitlines()]
  assert [len(row["mean_output"]) for row in rows] == [12, 12]
