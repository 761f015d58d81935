"""What the library reads and writes in a bucket is what it reads and writes on a disk."""

import gzip
import json

import pyarrow
from pyarrow import parquet
import pytest
from support.bucket.gcs_proxy import Faults
from support.bucket.story import write_inputs

from albert_tf.records import Manifest, RecordFile, frame_record

_ROWS = [{"key": "r1", "question": "the sky", "answer": "green", "stars": 10}] * 2
_SQUAD = {
  "version": "1.1",
  "data": [
    {
      "title": "t",
      "paragraphs": [
        {
          "context": "the sky is blue",
          "qas": [{"id": "q", "question": "what?", "answers": [{"text": "sky", "answer_start": 4}]}],
        }
      ],
    }
  ],
}
_PASSAGE = {
  "article": "a",
  "questions": ["q"],
  "options": [["a", "b", "c", "d"]],
  "answers": ["A"],
  "id": "1",
}


def write_data(folder):
  """A file of every format that a command reads."""
  write_inputs(folder)
  (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
  for suffix, separator in (("tsv", "\t"), ("csv", ",")):
    lines = [separator.join(_ROWS[0]), *(separator.join(map(str, row.values())) for row in _ROWS)]
    (folder / f"table.{suffix}").write_text("\n".join(lines) + "\n")
  parquet.write_table(pyarrow.Table.from_pylist(_ROWS), str(folder / "table.parquet"))
  parquet.write_table(pyarrow.table({"text": ["One sentence. And one."]}), str(folder / "text.parquet"))
  (folder / "words.conll").write_text("EU B-ORG\nrejects O\n\nPeter B-PER\n")
  (folder / "squad.json").write_text(json.dumps(_SQUAD))
  (folder / "RACE/train/high").mkdir(parents=True)
  (folder / "RACE/train/high/1.txt").write_text(json.dumps(_PASSAGE))
  (folder / "corpus/0.txt.gz").write_bytes(gzip.compress((folder / "corpus/0.txt").read_bytes()))
  (folder / "records").mkdir()
  with (folder / "records/train-00000-of-00001.tfrecord").open("wb") as stream:
    for number in range(300):
      stream.write(frame_record(bytes(number)))
  Manifest(
    vocab_size=7,
    vocab_sha256="0",
    max_seq_length=8,
    max_predictions_per_seq=2,
    sentence_pair="sop",
    random_seed=1,
    files=(RecordFile("train-00000-of-00001.tfrecord", "train", 300, 1, "0"),),
  ).save(str(folder / "records"))


def test_the_file_module_does_the_same_on_a_disk_and_in_a_bucket(bucket, commands, tmp_path):
  program = "tests/bucket/programs/file_module.py"
  local = commands.run(program, place=tmp_path / "files")
  assert local.status == 0, local.stderr
  seen = json.loads(local.stdout)
  assert len(seen) > 30
  for rate in (0.0, 0.1):
    bucket.faults = Faults(rate=rate, seed=2)
    remote = commands.run(program, place=bucket.url(f"files-{rate}"))
    assert remote.status == 0, remote.stderr
    assert json.loads(remote.stdout) == seen
  assert bucket.proxy.counts()["fault:503"] > 3


@pytest.mark.slow
def test_every_reader_finds_the_same_in_a_bucket(bucket, commands, tmp_path):
  write_data(tmp_path)
  bucket.put_folder(tmp_path, "data")
  done = commands.run("tests/bucket/programs/readers.py", local=tmp_path, remote=bucket.url("data"))
  assert done.status == 0, done.stderr
  assert int(done.stdout) >= 15


def test_an_upload_taken_for_complete_is_made_again(bucket, commands):
  """A connection that breaks in an upload: the server keeps nothing of it, and the client takes it for done."""
  program = "tests/bucket/programs/write_one.py"
  before = bucket.proxy.counts().get("fault:cut_upload", 0)
  bucket.faults = Faults(rate=1, how=("cut_upload",), on="^upload ", at_most=2)
  done = commands.run(program, path=bucket.url("cut/a"), size=100_000)
  assert done.status == 0, done.stderr
  assert bucket.proxy.counts()["fault:cut_upload"] == before + 2
  assert bucket.get("cut/a") == b"x" * 100_000
  bucket.faults = Faults(rate=1, how=("cut_upload",), on="^upload ")
  done = commands.run(program, path=bucket.url("cut/a"), size=200_000)
  assert done.status == 2, done.stderr
  assert "of 200000 bytes arrived, 4 times" in done.stderr
  assert bucket.names("cut/") == ["cut/a"]
  assert bucket.get("cut/a") == b"x" * 100_000
