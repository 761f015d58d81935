"""Runs the commands of README and the guides as they are written, each page in a fresh clone.

What a reader brings (weights, tables, text) is there as small stand-ins, so the commands run, and their figures mean
nothing. A command that cannot run here is listed with the reason; `--list` prints this list alone. A command that
still works at its limit is stopped, and counts as one that began; what fails after it on its page is unknown. The
results are in OUTPUT/results.jsonl: the same command continues after the last one there. It ends with status 1 if a
command failed.

Example:
  python tests/command_blocks.py --output=/tmp/blocks --limit=300
"""

import argparse
import collections
from collections.abc import Iterator
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
  sys.path.insert(0, str(ROOT))

# Made from the commands' own help: no block of it is to be copied.
_LEFT_OUT = ("flags.md",)
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
# A block without a language holds commands if it begins with one of these.
_PROGRAMS = ("python", "make", "git", "pip", "curl", "awk", "source", "docker", "gcloud")
# A line of the shell that ends in a later one.
_SPANS_LINES = re.compile(r"^ *(for|if|while) |\(\) \{$", re.MULTILINE)
_SERVER = "tpu_scripts/serve_locally.py"
_OUTPUT = re.compile(r"--output_dir[= ]([\w./]+)")

# What a command matches → why it does not run here; the first that matches counts.
_REASONS = {
  r"^docker ": "needs Docker and an image of TensorFlow Serving",
  r"gcloud |^tpu\$|gs://|\$BUCKET|tpu\.env|--tpu=|STACK=tpu|\.venv-tpu/": "needs Google Cloud or a TPU",
  r"TF_CONFIG|--output_dir /shared": "needs several machines",
  r"gpu_step|run_programs|\.\[gpu\]": "needs a GPU",
  r"^wget |pip install|git clone|git -C|download_glue_data|PACKAGES/": "needs the network",
  r"^tar |--ignore-missing|vocabulary\.sha256": "needs the downloaded files",
  r"tf1|tf1/bin|python3\.7": "needs the original's environment",
  r"optimum-cli|nginx|https://localhost": "needs a program of others",
  r"…|MODEL\.json|\$REPOSITORY": "has a part that the reader fills in",
  r"^make ": "is a target of make, which CI or a person runs by itself",
  r"run_study|docstring_tasks|early_exit_runs|benchmarks/": "takes hours",
  r"run_pretrain.*recipes/albert_": "takes days without a TPU",
  r"albert-for-qa|ensemble_of|records_sop|--python=": "needs models that are not made here",
}
# Where a page gives a name another meaning: what the command matches → the name, and its stand-in.
_OTHER_MEANINGS = {
  r"early_exit": ("E", "exports/early_exit"),
  r"--model classifier .*--init_checkpoint RUN": ("RUN", "classifier"),
  r"--init_checkpoint=squad2": ("squad2", "question_answering"),
}


class Command(NamedTuple):
  """A command of a page; `reason` says why it cannot run here, "" if it can."""

  page: str
  text: str
  reason: str


def pages() -> list[pathlib.Path]:
  """README and the guides."""
  guides = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in _LEFT_OUT)
  return [ROOT / "README.md", *guides]


def commands_of(page: pathlib.Path) -> Iterator[Command]:
  """The commands of a page's blocks, continued lines joined, in their order."""
  for language, block in _FENCE.findall(page.read_text(encoding="utf-8")):
    text = re.sub(r" *\\\n *", " ", block).strip()
    is_shell = language == "bash" or (not language and text.startswith(_PROGRAMS))
    if not is_shell:
      continue
    lines = [text] if _SPANS_LINES.search(text) else text.splitlines()
    for line in lines:
      command = line.strip()
      if command and not command.startswith("#"):
        yield Command(page.name, command, _reason(command))


def _reason(command: str) -> str:
  found = (why for pattern, why in _REASONS.items() if re.search(pattern, command, re.MULTILINE))
  return next(found, "")


class Clone:
  """A fresh clone with stand-ins, in which the commands of a page run."""

  def __init__(self, folder: pathlib.Path, stand_ins: pathlib.Path, limit: float):
    self.folder = folder
    self.stand_ins = stand_ins
    self.limit = limit
    self.server: subprocess.Popen[str] | None = None
    self.settings = ""  # Lines such as `export A=B`, for the commands after them.
    if not folder.exists():
      unfinished = folder.with_name(folder.name + ".unfinished")
      shutil.rmtree(unfinished, ignore_errors=True)
      subprocess.run(("git", "clone", "--quiet", "--shared", ROOT, unfinished), check=True)
      (unfinished / ".venv").symlink_to((ROOT / ".venv").resolve())
      shutil.copytree(stand_ins, unfinished, dirs_exist_ok=True)
      unfinished.rename(folder)
    self.environment = os.environ | {
      "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}",
      "PYTHONPATH": str(folder),
      "TF_CPP_MIN_LOG_LEVEL": "2",
    }

  def run(self, command: str) -> tuple[str, str]:
    """Runs a command; returns its outcome (ran, began, failed), and the end of its output."""
    for pattern, (name, stand_in) in _OTHER_MEANINGS.items():
      if re.search(pattern, command):
        shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(self.stand_ins / stand_in, self.folder / name)
        self.stop_server()
    # Sections of a page are alternatives, and a reader takes a new folder for each.
    output_dir = _OUTPUT.search(command)
    if output_dir:
      uses = re.findall(rf"(?<![\w/]){re.escape(output_dir[1])}(?!\w)", command)
      # Some commands write below what they read: `--init_checkpoint run --output_dir run/saved_model`.
      if len(uses) == 1:
        shutil.rmtree(self.folder / output_dir[1], ignore_errors=True)
    if _SERVER in command:
      return self._serve(command)
    if command.startswith("curl ") and self.server is None:
      [name] = re.findall(r"models/(\w+)", command)[:1]
      self._serve(f"python {_SERVER} --saved_model {name}")
    if command.startswith(("source ", "export ", "cd ")):
      self.settings += command + "\n"

    process = self._start(command)
    try:
      output, _ = process.communicate(timeout=self.limit)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)
      output, _ = process.communicate()
      return "began", output[-500:]
    # curl ends with status 0 for an answer that is an error.
    failed = process.returncode or (command.startswith("curl ") and '"error":' in output)
    return ("failed" if failed else "ran"), output[-2000:]

  def _start(self, command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
      ("bash", "-o", "pipefail", "-c", self.settings + command),
      cwd=self.folder,
      env=self.environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      start_new_session=True,  # A group of its own, which can be ended.
    )

  def _serve(self, command: str) -> tuple[str, str]:
    """Starts a server, which later commands of the page ask."""
    self.stop_server()
    self.server = self._start(command.removesuffix("&"))
    output = ""
    for line in self.server.stdout or ():
      output += line
      if "Try it in a browser" in line:
        return "ran", output
    return "failed", output[-2000:]

  def stop_server(self) -> None:
    if self.server is not None:
      os.killpg(self.server.pid, signal.SIGKILL)
      self.server.communicate()
      self.server = None


def run_page(page: pathlib.Path, results: pathlib.Path, limit: float) -> None:
  """Runs the commands of a page that have no result yet."""
  rows = read_results(results)
  known = {(row["page"], row["command"]) for row in rows}
  any_stopped = any(row["page"] == page.name and row["outcome"] == "began" for row in rows)
  commands = [command for command in commands_of(page) if not command.reason]
  if all((command.page, command.text) in known for command in commands):
    return
  clone = Clone(results.parent / "pages" / page.stem, results.parent / "stand_ins", limit)
  try:
    for command in commands:
      is_known = (command.page, command.text) in known
      # A server is gone since the last run.
      if is_known and _SERVER not in command.text:
        continue
      start = time.monotonic()
      outcome, output = clone.run(command.text)
      any_stopped |= outcome == "began"
      if outcome == "failed" and any_stopped:
        outcome = "unknown"  # Perhaps it needs what the stopped command would have written.
      print(f"{outcome:7} {page.name}: {command.text[:100]}", flush=True)
      if not is_known:
        row = {"page": page.name, "command": command.text, "outcome": outcome}
        row |= {"seconds": round(time.monotonic() - start), "output": output}
        with results.open("a", encoding="utf-8") as stream:
          stream.write(json.dumps(row, ensure_ascii=False) + "\n")
  finally:
    clone.stop_server()


def read_results(path: pathlib.Path) -> list[dict[str, str]]:
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------ stand-ins


def make_stand_ins(folder: pathlib.Path) -> None:
  """Writes what readers bring, small, under the names that the pages use."""
  from support import task_files, tiny_run
  from support.synthetic_checkpoint import convert_to

  from albert_tf import AlbertClassifier, AlbertQuestionAnswering, AlbertSentenceEncoder

  # Weights.
  run = folder / "run"
  tiny_run.write_pretrained(run, max_position_embeddings=512, num_hidden_layers=4)
  for name in ("RUN", ".demo/run", "runs/first", "runs/mnli"):
    shutil.copytree(run, folder / name)
  convert_to(folder / "albert_base_v2", run, "tf1")
  convert_to(folder / "hf", run, "huggingface")
  classifier = AlbertClassifier.from_pretrained(run, label_names=["0", "1"], train_depths=(1, 2, 4))
  classifier.save_pretrained(folder / "classifier")
  classifier.export(folder / "runs/reviews/saved_model/1")
  classifier.export(folder / "exports/early_exit/1")
  AlbertSentenceEncoder.from_pretrained(run).export(folder / "vectors/saved_model/1")
  reader = AlbertQuestionAnswering.from_pretrained(run)
  reader.save_pretrained(folder / "question_answering")
  reader.export(folder / "squad/saved_model/1")

  # Data sets.
  for name in ("glue", "glue_data"):
    (folder / name).mkdir()
    task_files.write_glue(folder / name, 64)
    _write_rte_and_cola(folder / name)
  for name in ("train-v2.0.json", "dev-v2.0.json"):
    task_files.write_squad(folder / name, articles=12)
  task_files.write_squad(folder / "questions.json", answers=False)
  task_files.write_race(folder)
  for name in ("eng.train", "eng.testa", "eng.testb"):
    task_files.write_columns(folder / name, 20)
  (folder / "en_ewt-ud-train.conllu").write_text("1\tA\t_\tDET\n2\tbird\t_\tNOUN\n\n")
  _write_tables(folder)
  _write_corpora(folder)


def _write_rte_and_cola(folder: pathlib.Path) -> None:
  pairs = [
    f"{i}\tthe sky\tgreen grass\t{('entailment', 'not_entailment')[i % 2]}" for i in range(64)
  ]
  sentences = [f"a\t{i % 2}\t\t{('the sky', 'green grass')[i % 2]}" for i in range(64)]
  for task, header, rows in (
    ("RTE", ["index\tsentence1\tsentence2\tlabel"], pairs),
    ("CoLA", [], sentences),
  ):
    (folder / task).mkdir()
    for split in ("train", "dev"):
      (folder / task / f"{split}.tsv").write_text("\n".join([*header, *rows]) + "\n")


def _write_tables(folder: pathlib.Path) -> None:
  import pyarrow
  from pyarrow import parquet

  reviews = [("the sky is blue", 1), ("small birds sing", 0), ("green grass", 1), ("trees", 0)] * 16
  rows = "".join(f"{text},{stars}\n" for text, stars in reviews)
  (folder / "new").mkdir()
  for name in ("train.csv", "dev.csv", "new.csv", "new/1.csv"):
    (folder / name).write_text(f"review,stars\n{rows}")
  sections = '"Notes,Returns"', "Returns", '""', "Notes"
  overlapping = "".join(
    f"{text},{names}\n" for (text, _), names in zip(reviews, sections * 16, strict=True)
  )
  (folder / "sections.csv").write_text(f"text,sections\n{overlapping}")
  questions = "".join(
    f"the sky is blue,what is blue?,sky,grass,birds,{'ABC'[i % 3]}\n" for i in range(32)
  )
  (folder / "quiz.csv").write_text(f"text,question,a,b,c,answer\n{questions}")
  parquet.write_table(
    pyarrow.table({"text": [text for text, _ in reviews]}), folder / "texts.parquet"
  )
  asked = json.dumps({"question": "what is blue?", "context": "the sky is blue"})
  (folder / "asked.jsonl").write_text(f"{asked}\n" * 4)


def _write_invented_words(path: pathlib.Path) -> None:
  rng = random.Random(0)
  syllables = [consonant + vowel for consonant in "bcdfghklmnprstvwz" for vowel in "aeiou"]
  words = ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(40_000)]
  with path.open("w", encoding="utf-8") as stream:
    for _ in range(4_000):
      for _ in range(8):
        stream.write(" ".join(rng.choices(words, k=12)).capitalize() + ".\n")
      stream.write("\n")


def _write_corpora(folder: pathlib.Path) -> None:
  """Text, a vocabulary of 8,000 tokens and records of it, by this project's commands."""
  records = "--output_dir=records --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=1"
  text = "--input=corpus/*.txt"
  made = (
    "extract_installed_docs.py --max_megabytes=40 --output_dir=corpus",
    f"train_vocab.py {text} --model_prefix=vocab/spm --vocab_size=8000",
    f"create_pretraining_data.py {text} --spm_model_file=vocab/spm.model {records} --eval_fraction=0.02",
  )
  # Installed documentation has too few words for a vocabulary of 32,000 tokens.
  (folder / "corpus").mkdir()
  _write_invented_words(folder / "corpus/invented.txt")
  for command in made:
    script, *arguments = command.split()
    subprocess.run(
      [sys.executable, str(ROOT / "tfrecords_tools" / script), *arguments],
      cwd=folder,
      env=os.environ | {"PYTHONPATH": str(ROOT)},
      check=True,
    )
  for name in ("text", "part", "ja"):
    shutil.copytree(folder / "corpus", folder / name)
  shutil.copytree(folder / "vocab", folder / "vocabulary")
  first = sorted((folder / "corpus").glob("*.txt"))[0]
  shutil.copy(first, folder / "corpus.txt")
  sentences = [line for line in first.read_text(encoding="utf-8").splitlines() if line]
  (folder / "tweets.txt").write_text("\n".join(sentences[:500]) + "\n", encoding="utf-8")


# ------------------------------------------------------------------ the command


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--output", type=pathlib.Path, help="Folder of clones and results.")
  parser.add_argument(
    "--pages", default="", help="Names such as README.md,serving.md; default: all."
  )
  parser.add_argument("--limit", type=float, default=300, help="Seconds of a command.")
  parser.add_argument("--list", action="store_true", help="Print what would run, and what cannot.")
  given = parser.parse_args()
  chosen = [page for page in pages() if not given.pages or page.name in given.pages.split(",")]

  if not given.list:
    stand_ins = given.output / "stand_ins"
    if not stand_ins.exists():
      unfinished = given.output / "stand_ins.unfinished"
      shutil.rmtree(unfinished, ignore_errors=True)
      unfinished.mkdir(parents=True)
      make_stand_ins(unfinished.resolve())
      unfinished.rename(stand_ins)
    for page in chosen:
      run_page(page, given.output / "results.jsonl", given.limit)

  # What ran, and what did not, with the reason.
  commands = [command for page in chosen for command in commands_of(page)]
  for command in commands:
    if command.reason:
      print(f"{command.page}: {command.reason}: {command.text.splitlines()[0][:100]}")
  print(f"{len(commands)} commands, of which {sum(not of.reason for of in commands)} can run here")
  if not given.list:
    results = read_results(given.output / "results.jsonl")
    for row in results:
      if row["outcome"] in ("failed", "unknown"):
        print(f"{row['outcome']} {row['page']}: {row['command']}\n{row['output']}")
    outcomes = collections.Counter(row["outcome"] for row in results)
    print(", ".join(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items())))
    sys.exit(bool(outcomes["failed"]))


if __name__ == "__main__":
  main()
