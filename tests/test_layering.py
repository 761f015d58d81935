"""The arrows between packages, sizes of files and functions, and what an import may load.

Everything is read from the source with `ast`; only the TensorFlow-free imports
are run, each in a process of its own.
"""

import ast
from collections.abc import Iterator
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
CODE_FOLDERS = ("albert_tf", "tfrecords_tools", "tpu_scripts", "benchmarks")

# DESIGN: who may import whom. The leaves `errors` and `files` may be imported by anyone.
LEAVES = {"devices", "errors", "files", "progress", "remote_files", "startup", "tpu_host"}
BASE = {"configs", "tokenization", "records", "checkpoints", "compat"}
MODEL = BASE | {"modeling", "optim"}
LIBRARY_ARROWS: dict[str, set[str]] = {
  "__init__": {"configs", "finetuning", "lazy", "modeling", "optim", "preprocessing", "tokenization"},
  "lazy": set(),
  "devices": set(),
  "errors": set(),
  "files": set(),
  "progress": set(),
  "remote_files": set(),
  "startup": set(),
  "tpu_host": set(),
  "doctor": set(),
  "compat": set(),
  "configs": set(),
  "tokenization": set(),
  "records": set(),
  "checkpoints": set(),
  "preprocessing": {"compat", "tokenization"},
  # A Keras user's verbs, such as export, begin at a model and reach upwards when they are called.
  "text_model": BASE | {"interop", "modeling", "preprocessing", "serving"},
  "modeling": {"configs", "compat", "text_model"},
  "optim": {"configs", "compat"},
  "pipelines": {"configs", "records"},
  "training": MODEL | {"pipelines", "interop"},
  "finetuning": MODEL | {"pipelines", "training", "interop", "text_model"},
  "interop": MODEL,
  "planning": MODEL | {"pipelines", "training"},
  "serving": MODEL | {"finetuning", "interop", "text_model"},
  "studies": BASE | {"planning"},
}
TOOLS_ARROWS = {"tokenization", "records"}

# path → most lines, and "path:function" → most lines, of what may be larger than the rule allows, with the reason.
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
LONG_FILES: dict[str, int] = {
  # One small corpus and one run of the command carry many promises.
  "tests/tfrecords_tools/test_create_pretraining_data.py": 400,
}
LONG_FUNCTIONS: dict[str, int] = {}

# What opens, looks up or changes files; on a path that a user names this is for `albert_tf.files` alone.
FILE_CALLS = re.compile(
  r"(open|os\.(rename|replace|listdir|scandir|walk|makedirs|mkdir|remove|unlink|rmdir|stat|access)"
  r"|os\.path\.(exists|lexists|isdir|isfile|islink|normpath|abspath|realpath|relpath|expanduser|getsize)"
  r"|shutil\.(copy\w*|move|rmtree)|(glob|pathlib)\.\w+|(tf|tensorflow)\.(io\.)?gfile)$"
)
# path → why it may: the files there are never a user's, or a user's only on this machine.
OWN_FILES = {
  "albert_tf/files.py": "the one module",
  "albert_tf/remote_files.py": "its other half",
  "albert_tf/doctor.py": "this machine's memory, disk and lock files",
  "albert_tf/tpu_host.py": "device files, and who holds them",
  "albert_tf/planning/step_compiler.py": "this package's sources; a cache below ~",
  "albert_tf/planning/final_schedule.py": "what the compiler has written among them",
  "albert_tf/planning/tpu_compiler.py": "temporary files of the compiler's process",
  "albert_tf/planning/tpu_compiler_worker.py": "the same files, on the other side",
  "albert_tf/serving/bare_loader.py": "runs where this project's code is absent",
  "albert_tf/serving/check.py": "starts it, with temporary files",
  "albert_tf/training/metrics_log.py": "appends, which only a disk can",
  "albert_tf/training/run_lock.py": "processes of this machine",
  "albert_tf/training/run_directory.py": "asks a local disk whether it may be written",
  "tfrecords_tools/corpus/installed_docs.py": "installed packages",
  "tfrecords_tools/pretraining/sorted_runs.py": "unfinished work, which is on a local disk",
  "tpu_scripts/check_saved_model.py": "interpreters on this machine",
  "tpu_scripts/console.py": "this installation",
  "tpu_scripts/demo.py": "this checkout",
  "tpu_scripts/run_study.py": "this checkout",
  "tpu_scripts/flag_settings.py": "flag files, which absl too reads on this machine alone",
}

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
  """Line and full dotted name of every import in the file, the ones inside functions included."""
  package = module_of(path)[:-1]
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
      if top == "absl" and rest[:1] == ["flags"] and folder == "albert_tf":
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


def test_imports_follow_the_arrows() -> None:
  assert list(violations()) == []


def test_every_package_has_its_arrows() -> None:
  units = {module_of(path)[1] for path in source_files("albert_tf")}
  assert units <= set(LIBRARY_ARROWS), "say in LIBRARY_ARROWS what a new package may import"


def test_the_picture_has_only_arrows_that_are_allowed() -> None:
  text = (ROOT / "docs/images/architecture.dot").read_text(encoding="utf-8")
  arrows = set(re.findall(r"(\w+) -> (\w+)", re.sub(r"\w+ -> \w+ \[style=invis\]", "", text)))
  assert {unit for arrow in arrows for unit in arrow} >= set(LIBRARY_ARROWS) - LEAVES - {
    "__init__",
    "doctor",
    "lazy",
  }
  allowed = {**LIBRARY_ARROWS, "tfrecords_tools": TOOLS_ARROWS, "tpu_scripts": set(LIBRARY_ARROWS)}
  assert {arrow for arrow in arrows if arrow[1] not in allowed[arrow[0]]} == set()


@pytest.mark.parametrize(
  "module",
  [
    "albert_tf",
    "albert_tf.configs",
    "albert_tf.optim.config",
    "albert_tf.records",
    "albert_tf.tokenization",
    "albert_tf.studies.report",
    "albert_tf.training.settings",
  ],
)
def test_import_leaves_tensorflow_out(module: str) -> None:
  heavy = "{'tensorflow', 'keras', 'tensorflow_text'}"
  code = f"import sys, {module}; sys.exit(', '.join({heavy} & set(sys.modules)) or None)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  assert done.returncode == 0, f"importing {module} loads {done.stderr}"


def test_the_data_command_starts_with_little() -> None:
  """What only some jobs need, or only the work itself, is loaded there: start-up is most of a small job."""
  deferred = (
    "{'tensorflow', 'keras', 'tqdm', 'multiprocessing', 'concurrent.futures.process', 'numpy.random', 'fractions', "
    "'decimal', 'html', 'xml.etree', 'mwxml', 'mwparserfromhell', 'pyarrow', 'apache_beam'}"
  )
  module = "tfrecords_tools.create_pretraining_data"
  # NumPy 1 loads all of its own at once.
  code = f"import sys, numpy; known = set(sys.modules); import {module}; "
  code += f"sys.exit(', '.join({deferred} & (set(sys.modules) - known)) or None)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  assert done.returncode == 0, f"importing {module} loads {done.stderr}"


def test_files_stay_short() -> None:
  lengths = {
    str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
    for path in source_files(*CODE_FOLDERS, "tests")
  }
  assert {
    name: lines for name, lines in lengths.items() if lines > LONG_FILES.get(name, MAX_FILE_LINES)
  } == {}


def test_functions_stay_short() -> None:
  too_long = {}
  for path in source_files(*CODE_FOLDERS, "tests"):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
        # The docstring explains, it is not a part of what must fit on a screen.
        documented = ast.get_docstring(node, clean=False)
        length = node.end_lineno - node.lineno + 1 - (len(documented.splitlines()) if documented else 0)
        name = f"{path.relative_to(ROOT)}:{node.name}"
        if length > LONG_FUNCTIONS.get(name, MAX_FUNCTION_LINES):
          too_long[name] = length
  assert too_long == {}


def file_calls(path: pathlib.Path) -> Iterator[str]:
  """Names of the functions on files that a module calls or passes on."""
  names = {}  # As imported: `import glob as glob_lib`, `from shutil import copyfile`.
  tree = ast.parse(path.read_text(encoding="utf-8"))
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names.update({alias.asname or alias.name: alias.name for alias in node.names})
    elif isinstance(node, ast.ImportFrom) and not node.level:
      names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
  for node in ast.walk(tree):
    if isinstance(node, (ast.Attribute, ast.Name)):
      first, dot, rest = ast.unparse(node).partition(".")
      name = names.get(first, first) + dot + rest
      if FILE_CALLS.match(name):
        yield f"{node.lineno}: {name}"


def test_user_paths_go_through_the_file_module() -> None:
  found = {
    str(path.relative_to(ROOT)): list(file_calls(path))
    for path in source_files("albert_tf", "tfrecords_tools", "tpu_scripts")
  }
  found = {name: calls for name, calls in found.items() if calls}
  assert {name: calls for name, calls in found.items() if name not in OWN_FILES} == {}
  assert sorted(OWN_FILES) == sorted(found), "an exception that is none any more"


def test_no_paths_of_one_machine() -> None:
  found = [
    f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
    for path in source_files(*CODE_FOLDERS, "tests")
    if path != pathlib.Path(__file__)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    if MACHINE_PATH.search(line)
  ]
  assert found == []


def test_stack_differences_live_in_compat() -> None:
  found = [
    f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
    for path in source_files("albert_tf", "tfrecords_tools", "tpu_scripts")
    if path != ROOT / "albert_tf/compat.py"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    if VERSION_TEST.search(line) and re.search(r"\bif\b|\bwhile\b|[<>=]=|startswith|split", line)
  ]
  assert found == []


def test_the_checks_see_a_violation(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (tmp_path / "albert_tf/records").mkdir(parents=True)
  (tmp_path / "tfrecords_tools").mkdir()
  (tmp_path / "albert_tf/records/a.py").write_text(
    "def f():\n  from albert_tf import modeling\n"
    "from ..optim import lamb\nfrom . import b\nfrom absl import flags\n"
  )
  (tmp_path / "albert_tf/records/b.py").write_text(
    "import tfrecords_tools.x\nfrom albert_tf.errors import UserError\n"
  )
  (tmp_path / "tfrecords_tools/x.py").write_text(
    "import albert_tf.training.loop\nfrom albert_tf import records\n"
  )
  monkeypatch.setitem(globals(), "ROOT", tmp_path)
  assert [violation.split(": ")[0] for violation in violations()] == [
    "albert_tf/records/a.py:3",
    "albert_tf/records/a.py:5",
    "albert_tf/records/a.py:2",
    "albert_tf/records/b.py:1",
    "tfrecords_tools/x.py:1",
  ]
