"""Small files of every fine-tuning family, as their data sets come."""

import json

import numpy as np
from support.tiny_run import WORDS


def write_mrpc(folder, rows):
  """GLUE's files of one task, with labels that can be learned."""
  folder.mkdir()
  lines = [f"{i % 2}\t1\t2\tthe sky\t{'the sky' if i % 2 else 'green grass'}" for i in range(rows)]
  for name in ("train", "dev"):
    _write_lines(folder / f"{name}.tsv", ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines])
  test = [f"{i}\t1\t2\tthe sky\tthe sky" for i in range(5)]
  _write_lines(folder / "test.tsv", ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", *test])


def _write_lines(path, lines):
  path.write_text("\n".join(lines) + "\n")


def _article(rng, name, *, version, answers=True, words=WORDS):
  """Two paragraphs of made-up words with three questions each, the last one impossible in 2.0."""
  paragraphs = []
  for part in range(2):
    chosen = [str(word) for word in rng.choice(words, 30, replace=len(words) < 30)]
    context, qas = " ".join(chosen), []
    for index in range(3):
      at = 5 * index
      question = {"id": f"{name}-{part}-{index}", "question": f"{chosen[at]} {chosen[at + 1]}?"}
      if answers:
        start = len(" ".join(chosen[: at + 2])) + 1
        question["answers"] = [{"text": " ".join(chosen[at + 2 : at + 4]), "answer_start": start}]
        if version == "2.0" and index == 2:
          question |= {"answers": [], "is_impossible": True}
      qas.append(question)
    paragraphs.append({"context": context, "qas": qas})
  return {"title": name, "paragraphs": paragraphs}


def write_squad(path, *, version="2.0", articles=2, answers=True, seed=0, words=WORDS):
  """A SQuAD file. Of 30 `words` or more, no paragraph repeats one: each question has one answer."""
  rng = np.random.default_rng(seed)
  names = [f"{path.stem}-{number}" for number in range(articles)]
  made = [_article(rng, name, version=version, answers=answers, words=words) for name in names]
  path.write_text(json.dumps({"version": f"v{version}", "data": made}))


def _words(rng, count):
  return " ".join(rng.choice(WORDS, count))


def write_race(folder):
  """RACE's tree below `folder/RACE`."""
  rng = np.random.default_rng(0)
  for split, count in (("train", 6), ("dev", 3), ("test", 2)):
    for level in ("middle", "high"):
      place = folder / "RACE" / split / level
      place.mkdir(parents=True)
      for number in range(count):
        passage = {
          "id": f"{level}{number}.txt",
          "article": _words(rng, 20),
          "questions": [f"{_words(rng, 2)} _ .", f"{_words(rng, 3)}?"],
          "options": [[_words(rng, 2) for _ in range(4)] for _ in range(2)],
          "answers": rng.choice(list("ABCD"), 2).tolist(),
        }
        (place / f"{number}.txt").write_text(json.dumps(passage))


def write_columns(path, count):
  """Sentences with tags in the columns of CoNLL 2003."""
  rng = np.random.default_rng(0)
  lines = ["-DOCSTART- -X- O", ""]
  for _ in range(count):
    for word in rng.choice(WORDS, rng.integers(2, 20)):
      lines.append(f"{word} NN {'B-COLOUR' if word in ('blue', 'green') else 'O'}")
    lines.append("")
  path.write_text("\n".join(lines))


def write_glue(folder, rows):
  """GLUE's folders SST-2, MNLI and MRPC, with labels that can be learned."""
  write_mrpc(folder / "MRPC", rows)
  for name in ("SST-2", "MNLI"):
    (folder / name).mkdir()
  reviews = [f"{'the sky' if i % 2 else 'green grass'}\t{i % 2}" for i in range(rows)]
  for name in ("train", "dev"):
    _write_lines(folder / f"SST-2/{name}.tsv", ["sentence\tlabel", *reviews])
  # Texts are in the columns 8 and 9, the label is the last.
  kinds = ("entailment", "neutral", "contradiction")
  header = [f"column_{n}" for n in range(8)] + ["sentence1", "sentence2", "label1", "gold_label"]
  lines = ["\t".join(header)]
  for i in range(rows):
    kind = kinds[i % 3]
    texts = ["the sky", ("the sky", "green grass", "small birds")[i % 3]]
    lines.append("\t".join([str(i)] * 8 + texts + [kind, kind]))
  for name in ("train", "dev_matched", "dev_mismatched"):
    _write_lines(folder / f"MNLI/{name}.tsv", lines)
