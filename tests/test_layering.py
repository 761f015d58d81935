"""Allowed imports between packages, import cycles, and modules that imports may load. The source is read with `ast`."""

import ast
from collections.abc import Iterator
import pathlib
import re
import subprocess
import sys

import albert_tf

ROOT = pathlib.Path(__file__).parent.parent
CODE_FOLDERS = ("albert_tf", "tfrecords_tools", "tpu_scripts", "benchmarks")

# Who may import whom (docs/architecture.md). Anyone may import the leaves, which import each other at most.
LEAVES = {"compat", "errors", "files", "json_files", "lock", "progress", "settings", "tpu_host"}
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
  "keras_api": {"configs", "tokenization", "modeling", "checkpoints", "serving"},
  "pretraining": {
    "configs", "tokenization", "records", "optim", "modeling", "pipelines", "checkpoints", "runs",
  },
  "finetuning": {
    "configs", "tokenization", "optim", "modeling", "windows", "pipelines", "checkpoints", "serving", "runs",
    "keras_api",
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


def imported_modules(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  """Line and full dotted name of every import in the file, those inside functions too, those for types not."""
  package = module_of(path)[:-1]
  tree = ast.parse(path.read_text(encoding="utf-8"))
  for_types = {
    id(node)
    for block in ast.walk(tree)
    if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
    for child in block.body
    for node in ast.walk(child)
  }
  for node in ast.walk(tree):
    if id(node) in for_types:
      continue
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) - node.level + 1] if node.level else []
      prefix = ".".join(base + ([node.module] if node.module else []))
      yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def violations() -> Iterator[str]:
  for path in source_files(*CODE_FOLDERS):
    where = path.relative_to(ROOT)
    folder, unit = module_of(path)[0], module_of(path)[1]
    for line, name in imported_modules(path):
      top, *rest = name.split(".")
      if top in CODE_FOLDERS and top != "albert_tf":
        if folder not in (top, "benchmarks"):  # A benchmark measures what users run.
          yield f"{where}:{line}: only benchmarks may import {name} from outside {top}/"
        continue
      if top == "absl" and rest[:1] == ["flags"] and folder == "albert_tf" and unit != "cli":
        yield f"{where}:{line}: library code never reads flags"
      if top != "albert_tf" or not rest or rest[0] in LEAVES or rest[0].startswith("__"):
        continue
      if folder == "albert_tf":
        allowed = LIBRARY_ARROWS.get(unit, set()) | {unit}
      else:
        allowed = TOOLS_ARROWS if folder == "tfrecords_tools" else set(LIBRARY_ARROWS)
      if folder == "benchmarks" and rest[0][0].isupper():  # A public name, as users write it.
        continue
      if rest[0] not in allowed:
        yield f"{where}:{line}: {'.'.join(module_of(path)[:2])} may not import {name}"


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


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
  """The groups of modules that import each other, directly or through others."""
  reached: dict[str, set[str]] = {}
  for module in graph:
    seen: set[str] = set()
    stack = list(graph[module])
    while stack:
      if (current := stack.pop()) not in seen:
        seen.add(current)
        stack += graph[current]
    reached[module] = seen
  groups = {
    tuple(sorted(m for m in reached[a] if a in reached[m])) for a in graph if a in reached[a]
  }
  return [list(group) for group in sorted(groups)]


def test_imports_follow_the_arrows() -> None:
  assert list(violations()) == []


def test_no_modules_import_each_other() -> None:
  assert cycles(import_graph()) == []
  assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]


def test_the_arrows_are_exactly_those_that_exist() -> None:
  existing: dict[str, set[str]] = {}
  for path in source_files("albert_tf"):
    unit = module_of(path)[1]
    if unit in LEAVES or unit == "__init__":
      continue
    targets = existing.setdefault(unit, set())
    for _, name in imported_modules(path):
      top, *rest = name.split(".")
      inside = top == "albert_tf" and rest and not rest[0].startswith("__")
      if inside and rest[0] not in {*LEAVES, unit}:
        targets.add(rest[0])
  assert existing == LIBRARY_ARROWS


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
