"""Damaged files of every kind end well or in a `UserError` that names the file."""

import json
import pathlib
import re
import shutil

from fuzz import readers
from fuzz.child import Child
from fuzz.fuzzing import damaged, damaged_json, fuzz
from hypothesis import strategies as st
import pytest
from sentencepiece import sentencepiece_model_pb2 as model_proto
from support.goldens import SPM_MODEL

from albert_tf.errors import UserError
from albert_tf.records import frame_record
from albert_tf.records.tfrecord import masked_crc32c


def write_beside(path: pathlib.Path) -> None:
  """Good files that belong to the one that is to be damaged."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.name.startswith("tokenizer") and "alone" not in path.parts:
    vocabulary = "spm.model" if path.name == "tokenizer.json" else "spiece.model"
    shutil.copy(SPM_MODEL, path.parent / vocabulary)
  if path.name.startswith("offsets"):
    (path.parents[1] / "train-0.tfrecord").write_bytes(readers.SHARD)
  if path.name.startswith(("a.index", "a.data")):
    for name in ("a.index", "a.data-00000-of-00001", "albert_config.json"):
      (path.parent / name).write_bytes(readers.made(name))


NAMES = [
  pytest.param(name, marks=pytest.mark.slow if reader is readers.checkpoint else ())
  for name, (_, reader) in readers.FILES.items()
]


@pytest.mark.parametrize("name", NAMES)
@fuzz(data=st.data(), cost=2)
def test_file(child: Child, tmp_path: pathlib.Path, name: str, data: st.DataObject) -> None:
  good, path = readers.FILES[name][0], tmp_path / name
  write_beside(path)
  if isinstance(good, dict):
    path.write_bytes(data.draw(damaged_json(good)))
  else:
    path.write_bytes(data.draw(damaged(good if isinstance(good, bytes) else readers.made(good))))
  child(readers.read, path, name)


@pytest.mark.parametrize("name", ["a.jsonl", "text.jsonl"])
@fuzz(data=st.data(), cost=2)
def test_json_lines(child: Child, tmp_path: pathlib.Path, data: st.DataObject, name: str) -> None:
  line = data.draw(damaged_json(readers.ROWS[0]))
  (tmp_path / name).write_bytes(readers.LINES + line + b"\n" + readers.LINES)
  child(readers.read, tmp_path / name, name)


def frame_length(length: int) -> bytes:
  header = length.to_bytes(8, "little")
  return header + masked_crc32c(header) + readers.SHARD[12:]


RECORDS = st.lists(st.sampled_from(readers.EXAMPLES[:3]) | damaged(readers.EXAMPLES[0]), max_size=4)
FRAMED = RECORDS.map(lambda records: b"".join(map(frame_record, records)))
LENGTHS = st.integers(0, 64).map(lambda bits: frame_length((1 << bits) - 1))


@fuzz(data=st.data())
def test_records_with_good_checksums(
  child: Child, tmp_path: pathlib.Path, data: st.DataObject
) -> None:
  path = tmp_path / "train-0.tfrecord"
  path.write_bytes(readers.SHARD + data.draw(FRAMED | LENGTHS))
  child(readers.records, path)


CUT = model_proto.ModelProto.FromString(pathlib.Path(SPM_MODEL).read_bytes())
CUT.normalizer_spec.precompiled_charsmap = b"\x00\xbc\x02\x00\x00"
FOUND = [
  ("spm.model", CUT.SerializeToString()),
  ("index/offsets-train-0.tfrecord.npy", b"\x93NUMPY\x01\x00v\x00{"),
  ("train-0.tfrecord", frame_length((1 << 33) - 1)),
  ("train-0.tfrecord", frame_record(b"\0")),
  ("a.parquet", b"PAR1"),
  ("text.parquet", readers.made("parquet").replace(b"text", b"tex\x80")),
  ("text.mediawiki", b"<page/>"),
  ("text.jsonl", b"[" * 20_000),
]


@pytest.mark.parametrize(("name", "content"), FOUND, ids=[name for name, _ in FOUND])
def test_found_once(child: Child, tmp_path: pathlib.Path, name: str, content: bytes) -> None:
  write_beside(tmp_path / name)
  (tmp_path / name).write_bytes(content)
  child(readers.read, tmp_path / name, name)


WRONG = [
  ("albert_config.json", {"hidden_size": "256"}),
  ("config.json", {"hidden_act": ["gelu"]}),
  ("task.json", {"label_names": "ab"}),
  ("task.json", {"label_names": ["O", "B-X", "O"]}),
  ("task.json", {"label_names": ["O", " "]}),
  ("task.json", {"format_version": 2}),
  ("squad/task.json", {"doc_stride": 0}),
  ("manifest.json", {"files": [{**readers.FILE.to_dict(), "num_bytes": "1"}]}),
  ("manifest.json", {"baseline": 3}),
  ("manifest.json", {"max_seq_length": 0}),
  ("ours/tokenizer.json", {"do_lower_case": "false"}),
  ("theirs/tokenizer_config.json", {"do_lower_case": "false"}),
  ("metrics.jsonl", {"step": "3"}),
  ("run.json", {"identity": 3}),
  ("results.json", {"best_run": 1}),
  ("part.json", {"file": 1}),
  ("squad.json", {"data": 3}),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_field_of_another_type_is_refused(tmp_path: pathlib.Path, name: str, wrong: dict) -> None:
  good, read = readers.FILES[name]
  path = tmp_path / name
  write_beside(path)
  path.write_text(json.dumps(good))
  read(str(path))
  path.write_text(json.dumps({**good, **wrong}))
  with pytest.raises(UserError, match=re.escape(str(path))) as refused:
    read(str(path))
  assert len(str(refused.value)) < 600


PIECES = st.text(max_size=3) | st.sampled_from(
  ["", "x" * 100_000, "\u2581" * 5000, "1,", "9" * 300 + ",", "[SEP]"]
)


@fuzz(data=st.data())
def test_pieces(child: Child, tmp_path: pathlib.Path, data: st.DataObject) -> None:
  """A whole vocabulary with other pieces, scores, types or settings."""
  model = model_proto.ModelProto.FromString(readers.made("spm.model"))
  for _ in range(data.draw(st.integers(1, 3))):
    piece = model.pieces[data.draw(st.integers(0, len(model.pieces) - 1))]
    match data.draw(st.sampled_from(["piece", "score", "type", "charsmap", "id", "kind"])):
      case "piece":
        piece.piece = data.draw(PIECES)
      case "score":
        piece.score = data.draw(st.floats(width=32))
      case "type":
        piece.type = data.draw(st.integers(1, 6))
      case "charsmap":
        model.normalizer_spec.precompiled_charsmap = data.draw(
          damaged(model.normalizer_spec.precompiled_charsmap)
        )
      case "id":
        name = data.draw(st.sampled_from(["unk_id", "pad_id", "bos_id", "vocab_size"]))
        setattr(model.trainer_spec, name, data.draw(st.integers(-3, 2**31 - 1)))
      case "kind":
        model.trainer_spec.model_type = data.draw(st.integers(1, 4))
  path = tmp_path / "spm.model"
  path.write_bytes(model.SerializeToString())
  child(readers.vocabulary, path)
