"""Allowed imports between packages, import cycles, and modules that imports may load. The source is read with `ast`."""

import ast
import functools
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

import albert_tf

ROOT = pathlib.Path(__file__).parent.parent
CODE_FOLDERS = ("albert_tf", "tfrecords_tools", "tpu_scripts", "benchmarks")

# Who may import whom (docs/architecture.md). Anyone may import the leaves, which import each other at most.
LEAVES = {
  "compat", "errors", "files", "json_files", "lock", "progress", "settings", "tables", "tpu_host",
}  # fmt: skip
# The list is exactly what is there: an arrow that nothing needs any more is removed.
LIBRARY_ARROWS: dict[str, set[str]] = {
  "tokenization": set(),
  "configs": set(),
  "records": set(),
  "optim": set(),
  "modeling": {"configs"},
  "windows": {"tokenization"},
  "pipelines": {"records", "tokenization"},
  "checkpoints": {"configs", "tokenization", "modeling"},
  "serving": {"configs", "tokenization", "records", "modeling", "windows"},
  "runs": {"configs", "tokenization", "pipelines", "checkpoints"},
  "keras_api": {
    "configs", "tokenization", "modeling", "pipelines", "checkpoints", "serving", "runs",
  },
  "pretraining": {
    "configs", "tokenization", "records", "optim", "modeling", "pipelines", "checkpoints", "runs",
  },
  "finetuning": {
    "configs", "tokenization", "optim", "modeling", "windows", "checkpoints", "serving", "runs", "keras_api",
  },
  "planning": {"configs", "optim", "modeling", "runs", "pretraining"},
  "studies": {"configs", "runs", "pretraining"},
  "cli": {"runs"},
}  # fmt: skip
TOOLS_ARROWS = {"tokenization", "records", "cli"}

MACHINE_PATH = re.compile(r"(?<![\w.}/])/(?:work|root|home|Users)/")
# A comparison with the version of Keras or TensorFlow decides between the stacks.
VERSION_TEST = re.compile(
  r"\b(?:tf|tensorflow|keras|tf\.keras)\.(?:__version__|version\(\)|version\.VERSION)"
)


def source_files(*folders: str) -> list[pathlib.Path]:
  return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: pathlib.Path) -> list[str]:
  """The dotted name's parts; a package's `__init__` counts as a module inside it."""
  return list(path.relative_to(ROOT).with_suffix("").parts)


@functools.cache
def imported_modules(path: pathlib.Path) -> list[tuple[int, str]]:
  """Line and full dotted name of every import in the file, those inside functions too, those for types not."""
  package = module_of(path)[:-1]
  tree = ast.parse(path.read_text(encoding="utf-8"))
  for block in ast.walk(tree):
    if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING"):
      block.body = []
  modules = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      modules += [(node.lineno, alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) - node.level + 1] if node.level else []
      prefix = ".".join(base + ([node.module] if node.module else []))
      modules += [(node.lineno, f"{prefix}.{alias.name}") for alias in node.names]
  return modules


def rooms_imported(path: pathlib.Path) -> set[str]:
  """The other rooms of the library, without its leaves, that a file imports."""
  names = [name.split(".") for _, name in imported_modules(path)]
  rooms = {name[1] for name in names if name[0] == "albert_tf" and len(name) > 1}
  # A benchmark imports public names, as users write them: AlbertClassifier, __version__.
  rooms = {room for room in rooms if room[0].islower()}
  return rooms - LEAVES - {module_of(path)[1]}


def import_graph() -> dict[str, set[str]]:
  """Module → the modules that it imports, lazily or not."""
  modules = {
    ".".join(module_of(path)).removesuffix(".__init__"): path
    for path in source_files(*CODE_FOLDERS)
  }
  graph = {}
  for module, path in modules.items():
    names = [name for _, name in imported_modules(path)]
    targets = {name if name in modules else name.rpartition(".")[0] for name in names}
    graph[module] = {target for target in targets if target in modules and target != module}
  return graph


def test_no_modules_import_each_other() -> None:
  graphlib.TopologicalSorter(import_graph()).prepare()


def test_the_arrows_are_exactly_those_that_exist() -> None:
  existing: dict[str, set[str]] = {}
  for path in source_files("albert_tf"):
    room = module_of(path)[1]
    if room != "__init__":
      existing[room] = existing.get(room, set()) | rooms_imported(path)
  assert existing == LIBRARY_ARROWS | {leaf: set() for leaf in LEAVES}
  for path in source_files("tfrecords_tools"):
    assert rooms_imported(path) <= TOOLS_ARROWS, path


def test_commands_are_imported_by_benchmarks_alone_and_flags_are_read_by_commands() -> None:
  """A benchmark measures what users run."""
  wrong = []
  for path in source_files(*CODE_FOLDERS):
    folder, unit = module_of(path)[:2]
    for line, name in imported_modules(path):
      top = name.split(".")[0]
      is_command = top in CODE_FOLDERS and top not in ("albert_tf", folder)
      reads_flags = name.startswith("absl.flags") and folder == "albert_tf" and unit != "cli"
      if (is_command and folder != "benchmarks") or reads_flags:
        wrong.append(f"{path.relative_to(ROOT)}:{line}: {name}")
  assert wrong == []


def test_the_picture_has_only_arrows_that_are_allowed() -> None:
  text = (ROOT / "docs/images/architecture.dot").read_text(encoding="utf-8")
  arrows = set(re.findall(r"(\w+) -> (\w+)", re.sub(r"\w+ -> \w+ \[style=invis\]", "", text)))
  shown = {unit for arrow in arrows for unit in arrow}
  assert shown >= set(LIBRARY_ARROWS)
  allowed = {**LIBRARY_ARROWS, "tfrecords_tools": TOOLS_ARROWS, "tpu_scripts": set(LIBRARY_ARROWS)}
  assert {arrow for arrow in arrows if arrow[1] not in allowed[arrow[0]]} == set()


def test_import_leaves_tensorflow_out() -> None:
  modules = """
    albert_tf albert_tf.cli.commands albert_tf.configs.task albert_tf.optim.config albert_tf.planning.plan
    albert_tf.records albert_tf.tokenization albert_tf.pretraining.settings albert_tf.finetuning.settings
    tfrecords_tools.create_pretraining_data
  """
  code = f"""
import importlib, sys
for module in {modules.split()}:
  importlib.import_module(module)
  heavy = {{"tensorflow", "keras", "tensorflow_text", "scipy", "pandas", "sklearn"}} & set(sys.modules)
  assert not heavy, (module, heavy)
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  assert done.returncode == 0, done.stderr


def lines_with(pattern: re.Pattern[str], *folders: str, but: pathlib.Path) -> list[str]:
  """Places of matching lines in all files of these folders but one."""
  return [
    f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
    for path in source_files(*folders)
    if path != but
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    if pattern.search(line)
  ]


def test_no_paths_of_one_machine() -> None:
  assert lines_with(MACHINE_PATH, *CODE_FOLDERS, "tests", but=pathlib.Path(__file__)) == []


def test_stack_differences_live_in_compat() -> None:
  folders = ("albert_tf", "tfrecords_tools", "tpu_scripts")
  found = lines_with(VERSION_TEST, *folders, but=ROOT / "albert_tf/compat.py")
  decision = re.compile(r"\bif\b|\bwhile\b|[<>=]=|startswith|split")
  assert [line for line in found if decision.search(line.partition(": ")[2])] == []


def test_nothing_is_done_in_an_assert() -> None:
  """`python -O` leaves each `assert` out, with all calls in it."""
  working = []
  for path in source_files("albert_tf", "tfrecords_tools", "tpu_scripts"):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for statement in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
      calls = [node for node in ast.walk(statement.test) if isinstance(node, ast.Call)]
      if any(ast.unparse(call.func) != "isinstance" for call in calls):
        working.append(f"{path.relative_to(ROOT)}:{statement.lineno}")
  assert working == []


def test_every_public_name_is_loaded_when_it_is_used():
  assert set(albert_tf.__all__) <= set(dir(albert_tf))
  assert all(getattr(albert_tf, name).__name__ == name for name in albert_tf.__all__)


@pytest.mark.slow
def test_pretraining_starts_without_what_it_does_not_use():
  code = """
import sys
from albert_tf.cli.commands import load_tensorflow
load_tensorflow()
import albert_tf.pretraining.run
print([name for name in ("pandas", "sklearn", "matplotlib.pyplot", "tensorflow_text") if sys.modules.get(name)])
import matplotlib.pyplot, sklearn.metrics, tensorflow_text
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
  assert done.returncode == 0, done.stderr
  assert done.stdout == "[]\n"
