"""SQuAD and RACE files as corpora: passages in order, no questions."""

import json
import pathlib

import pytest
from support.corpora import read_corpus as _read

from albert_tf.errors import UserError

_SQUAD = {
  "version": "1.1",
  "data": [
    {
      "title": "A",
      "paragraphs": [
        {
          "context": "It is one. It is two.",
          "qas": [{"id": "q", "question": "What is asked?", "answers": []}],
        },
        {"context": "It is three.", "qas": []},
      ],
    },
    {"title": "B", "paragraphs": [{"context": "Another article.", "qas": []}]},
    {"title": "C", "paragraphs": []},
  ],
}
_PASSAGES = [
  {
    "answers": ["A"],
    "options": [["x", "y", "z", "w"]],
    "questions": ["What is asked?"],
    "article": f"{name} went home. It was late.\nThe end.",
    "id": f"high{name}.txt",
  }
  for name in ("Ann", "Bob")
]


@pytest.mark.parametrize("indent", [None, 1])
def test_an_article_of_squad_is_a_document_without_its_questions(tmp_path: pathlib.Path, indent: int | None):
  documents, stats = _read(tmp_path / "dev.json", json.dumps(_SQUAD, indent=indent).encode())
  assert documents == [["It is one.", "It is two.", "It is three."], ["Another article."]]
  assert (dict(stats.formats), stats.documents, stats.skipped_records) == ({"squad": 1}, 2, 1)
  version_last = {"data": _SQUAD["data"], "version": "1.1"}
  assert _read(tmp_path / "dev.json", json.dumps(version_last).encode())[0] == documents


@pytest.mark.parametrize("separator", ["\n", "\r\n\n"])
def test_a_passage_of_race_is_a_document_in_both_layouts(tmp_path: pathlib.Path, separator: str):
  documents, stats = _read(tmp_path / "high1.txt", json.dumps(_PASSAGES[0], indent=2).encode())
  assert documents == [["Ann went home.", "It was late.", "The end."]]
  assert dict(stats.formats) == {"race": 1}
  lines = separator.join(map(json.dumps, _PASSAGES)) + "\n"
  documents, stats = _read(tmp_path / "all.txt", lines.encode())
  assert [document[0] for document in documents] == ["Ann went home.", "Bob went home."]
  assert dict(stats.formats) == {"race": 1}


def test_other_json_stays_jsonl(tmp_path: pathlib.Path):
  row = {"article": "One. Two.", "question": "Which?", "options": []}
  documents, stats = _read(tmp_path / "in.jsonl", json.dumps(row).encode(), text_field="article")
  assert (documents, dict(stats.formats)) == ([["One.", "Two."]], {"jsonl": 1})


def test_damage_is_named(tmp_path: pathlib.Path):
  cut = json.dumps(_SQUAD).encode()[:-40]
  with pytest.raises(UserError, match=r"--input_format=squad must hold one JSON object.*dev\.json"):
    _read(tmp_path / "dev.json", cut)
  with pytest.raises(UserError, match=r"squad must hold .* \(KeyError: 'data'\)"):
    _read(tmp_path / "dev.json", b'{"text": "One."}', input_format="squad")
  with pytest.raises(UserError, match=r"race must hold .* without a text 'article'"):
    _read(tmp_path / "high1.txt", b'{"text": "One."}', input_format="race")
  with pytest.raises(UserError, match=r"larger than 1 MiB"):
    _read(tmp_path / "all.txt", b" " * (2 << 20), input_format="race", max_record_bytes=1 << 20)
  bad = json.dumps(_PASSAGES[0]).encode().replace(b"Ann", b"A\xffn")
  with pytest.raises(UserError, match=r"Text must be UTF-8.*high1\.txt"):
    _read(tmp_path / "high1.txt", bad)
  assert _read(tmp_path / "high1.txt", bad, on_bad_text="skip", input_format="race")[0] == []
  assert _read(tmp_path / "high1.txt", bad, on_bad_text="replace")[0][0][0] == "A\ufffdn went home."


@pytest.mark.parametrize(("name", "articles"), [("train-subset-v2.0.json", 10), ("dev-half-v2.0.json", 16)])
def test_real_squad(shared_dir: pathlib.Path, name: str, articles: int):
  documents, stats = _read(shared_dir / "data/squad" / name)
  assert (dict(stats.formats), stats.documents) == ({"squad": 1}, articles)
  lengths = sorted(len(sentence.split()) for document in documents for sentence in document)
  assert 15 <= lengths[len(lengths) // 2] <= 30
  assert not any(document[0].endswith("?") for document in documents)
