"""ALBERT here and in other packages, as a user meets them: lines to write, the first trained step, the install.

Prints one JSON line. Each package is installed from PyPI into an environment of its own under --environments, whose
site-packages are measured before anything has run there. The programs are in `benchmarks/peer_programs/`; all of them
run here, on the same tiny model with random weights and the same texts, and nothing else is downloaded.

  lines: those of a task's files that are neither blank nor a comment, formatted alike (110 columns).
  first_step_s: from the start of the process to the end of the first optimizer step of `classification.py`, which
    takes strings; the packages take turns. cpu_s: the same by processor time, which a busy machine disturbs less.
  install_mb: all files below site-packages, 10^6 bytes; install_mb_without_cuda: less what only GPUs need, which
    PyPI's torch brings and its tensorflow does not.

Example:
  python benchmarks/peers.py --environments=/var/tmp/peers
"""

from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

from absl import flags
import common

from albert_tf.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "benchmarks" / "peer_programs"
_ENVIRONMENTS = flags.DEFINE_string(
  "environments", str(ROOT / ".cache" / "peers"), "Folder of the environments; some 15 GB."
)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "First steps of each; packages take turns.", lower_bound=1)
_ONLY = flags.DEFINE_list("only", [], "Packages; empty: all.")

TASKS = ("classification", "question_answering", "pretraining")
# Package → what a user installs for these programs.
INSTALLS: dict[str, tuple[str, ...]] = {
  "albert_tf": (),  # This checkout.
  "keras_hub": ("keras-hub==0.32.0", "tensorflow==2.21.0", "tensorflow-text==2.21.1"),
  "hugging_face": ("transformers[torch]==5.23.0", "torch==2.15.0", "sentencepiece==0.2.1"),
  "model_garden": ("tf-models-official==2.20.0",),
}
NONE = {
  ("keras_hub", "pretraining"): "its AlbertMaskedLM has no sentence-order head, and nothing makes such pairs",
  (
    "model_garden",
    "pretraining",
  ): "create_pretraining_data.py makes random next sentences, no sentence order",
}
_MARK = "# Trained."
_SAID = "first step: "
_REPORT = f"""\
import os as _os, time as _time
print("{_SAID}", _time.time(), sum(_os.times()[:2]), flush=True)
"""
_CONTEXT = "The demo reads the documentation of the packages. It trains a vocabulary of four thousand tokens."
_QUESTIONS = {
  "What does the demo read?": "the documentation",
  "How many tokens?": "four thousand",
  "Why?": "",
}


_CUDA = ("nvidia*/**/*", "cuda*/**/*", "triton*/**/*", "torch/lib/*cuda*")


class Installed(NamedTuple):
  """An environment: its interpreter, and the megabytes of what was installed, of that those for CUDA."""

  python: str
  megabytes: int
  for_cuda: int


def site_packages(environment: pathlib.Path) -> pathlib.Path:
  (found,) = environment.glob("lib/python3*/site-packages")
  return found


def megabytes(folder: pathlib.Path, patterns: tuple[str, ...] = ("**/*",)) -> int:
  found = {path for pattern in patterns for path in folder.glob(pattern) if not path.is_dir()}
  return round(sum(path.lstat().st_size for path in found) / 1e6)


@contextlib.contextmanager
def _source() -> Iterator[str]:
  """This checkout's packages in a folder that a build may fill."""
  with tempfile.TemporaryDirectory() as folder:
    for name in ("albert_tf", "tfrecords_tools", "tpu_scripts"):
      shutil.copytree(ROOT / name, f"{folder}/{name}", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
      shutil.copy(ROOT / name, folder)
    yield folder


def install(package: str, base: pathlib.Path) -> Installed:
  """A fresh environment with the package, or the one that an earlier run has finished; ours is always made anew."""
  place = base / package
  python, finished = str(place / "bin" / "python"), place / "installed.json"
  wanted = list(INSTALLS[package])
  if wanted and finished.exists():
    noted = json.loads(finished.read_text(encoding="utf-8"))
    if noted["requirements"] == wanted:
      return Installed(python, *noted["megabytes"])
  print(f"Installing {package} into {place}", file=sys.stderr, flush=True)
  subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
  with _source() as source:
    _run([python, "-m", "pip", "install", "--quiet", *(wanted or [source])], place)
  sizes = megabytes(site_packages(place)), megabytes(site_packages(place), _CUDA)
  finished.write_text(json.dumps({"requirements": wanted, "megabytes": sizes}), encoding="utf-8")
  return Installed(python, *sizes)


def _run(command: list[Any], folder: pathlib.Path, python: str = sys.executable) -> str:
  """Standard output of a command in a folder, where `python` is that of an environment."""
  paths = os.pathsep.join((os.path.dirname(python), os.environ["PATH"]))
  environment = {**os.environ, "PATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"}
  environment.pop("PYTHONPATH", None)
  done = subprocess.run(
    [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False
  )
  if done.returncode:
    raise UserError(
      f"Every program must succeed. Received: status {done.returncode} from {' '.join(map(str, command))} in "
      f"{folder}, which said: {(done.stdout + done.stderr)[-2000:]}"
    )
  return done.stdout


def questions(*, answered: bool) -> dict[str, Any]:
  """SQuAD 2.0's JSON: eight articles with three questions, or one question."""
  asked = _QUESTIONS if answered else {"What is trained?": ""}
  articles = []
  for number in range(8 if answered else 1):
    qas: list[dict[str, Any]] = []
    for question, answer in asked.items():
      answers = [{"text": answer, "answer_start": _CONTEXT.index(answer)}] if answer else []
      given = {"answers": answers, "is_impossible": not answer} if answered else {}
      qas.append({"id": f"{number}-{len(qas)}", "question": question, **given})
    articles.append({"title": str(number), "paragraphs": [{"context": _CONTEXT, "qas": qas}]})
  return {"version": "v2.0", "data": articles}


def make_inputs(folder: pathlib.Path) -> pathlib.Path:
  """What every package's programs read: a vocabulary, text, questions."""
  shared = folder / "shared"
  (shared / "corpus").mkdir(parents=True)
  documents = common.installed_documentation(str(folder), megabytes=2.0)
  os.replace(common.train_vocabulary(documents, str(folder)), shared / "spm.model")
  common.write_lines(documents, str(shared / "corpus" / "text.txt"))
  for name, answered in (("train-v2.0.json", True), ("questions.json", False)):
    (shared / name).write_text(json.dumps(questions(answered=answered)), encoding="utf-8")
  return shared


def prepare(package: str, python: str, shared: pathlib.Path) -> pathlib.Path:
  """A folder where the package's programs find the model with random weights, in the package's own form."""
  folder = shared.parent / package
  shutil.copytree(shared, folder)
  if package == "hugging_face":  # The weights of ours, converted.
    shutil.copytree(shared.parent / "albert_tf" / "hugging_face", folder / "run")
  else:
    _run([python, PROGRAMS / package / "prepare.py"], folder, python)
  if package == "albert_tf":  # README's commands run in a checkout.
    for name in ("tpu_scripts", "tfrecords_tools", "recipes"):
      (folder / name).symlink_to(ROOT / name)
  return folder


def files_of(package: str, task: str) -> list[pathlib.Path]:
  """The files that a user writes; the first is the one to start."""
  order = {".sh": 0, ".py": 1}
  return sorted(PROGRAMS.glob(f"{package}/{task}*"), key=lambda path: (order.get(path.suffix, 2), path.name))


def lines(paths: list[pathlib.Path]) -> int:
  """Neither blank nor a comment."""
  stripped = [line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
  return sum(bool(line) and not line.startswith("#") for line in stripped)


def run_program(package: str, task: str, folder: pathlib.Path, python: str) -> dict[str, float]:
  """Runs a program; of one in Python seconds and processor seconds to its first step, where its mark stands."""
  main, *others = files_of(package, task)
  for path in others:
    shutil.copy(path, folder)
  copy = folder / main.name
  code = main.read_text(encoding="utf-8")
  if main.suffix == ".sh":
    copy.write_text(code, encoding="utf-8")
    _run(["bash", "-e", copy], folder, python)
    return {}
  assert code.count(f"\n{_MARK}\n") == 1, main
  copy.write_text(code.replace(_MARK, _REPORT), encoding="utf-8")
  begun = time.time()
  said = _run([python, copy], folder, python)
  (line,) = [line for line in said.splitlines() if line.startswith(_SAID)]
  ended, cpu = map(float, line.removeprefix(_SAID).split())
  return {"first_step_s": ended - begun, "cpu_s": cpu}


def benchmark() -> Mapping[str, Any]:
  unknown = set(_ONLY.value) - set(INSTALLS)
  if unknown:
    raise UserError(f"--only takes {', '.join(INSTALLS)}. Received: {', '.join(sorted(unknown))}.")
  # Ours makes the weights that Hugging Face's programs read.
  chosen = [name for name in INSTALLS if not _ONLY.value or name in _ONLY.value or name == "albert_tf"]
  base = pathlib.Path(_ENVIRONMENTS.value)
  base.mkdir(parents=True, exist_ok=True)
  environments = {package: install(package, base) for package in chosen}
  results: dict[str, dict[str, Any]] = {}
  with tempfile.TemporaryDirectory() as work:
    shared = make_inputs(pathlib.Path(work))
    folders = {package: prepare(package, environments[package].python, shared) for package in chosen}
    for package in chosen:
      counts = {task: lines(files_of(package, task)) or f"none: {NONE[package, task]}" for task in TASKS}
      size = environments[package]
      results[package] = {"lines": counts, "install_mb": size.megabytes}
      results[package]["install_mb_without_cuda"] = size.megabytes - size.for_cuda
      for task in TASKS[1:]:
        if files_of(package, task):
          print(f"{package}: {task}", file=sys.stderr, flush=True)
          run_program(package, task, folders[package], environments[package].python)
    for _ in range(_ROUNDS.value + 1):  # The first fills the machine's caches.
      for package in chosen:
        print(f"{package}: classification", file=sys.stderr, flush=True)
        measured = run_program(package, "classification", folders[package], environments[package].python)
        for key, value in measured.items():
          results[package].setdefault(key, []).append(value)
  for result in results.values():
    for key in ("first_step_s", "cpu_s"):
      result[key] = round(statistics.median(result[key][1:]), 1)
  return {"python": sys.version.split()[0], "rounds": _ROUNDS.value, "packages": results}


if __name__ == "__main__":
  common.run(benchmark)
