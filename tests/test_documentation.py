"""Scripts, flags and their choices, targets of make, files and headings in README and guides exist.

Python blocks are executed by `tests/keras_api/test_text_models.py`, notebooks by `tests/test_tutorials.py`.
"""

import functools
import importlib.util
import pathlib
import re
import shlex
from typing import NamedTuple
from xml.etree import ElementTree

import command_blocks
import pytest
from support.commands.script_runs import run_command

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [
  ROOT / f"{name}.md"
  for name in "README CONTRIBUTING PAPER_MAP CHANGELOG SECURITY benchmarks/tpu_compile".split()
] + sorted((ROOT / "docs").glob("*.md"))
# Without the page that is made from the commands.
GUIDES = [path for path in PAGES if path.name == "README.md" or path.parent.name == "docs"]
GUIDES.remove(ROOT / "docs/flags.md")
SCRIPTS = {
  path.name: path
  for folder in ("tpu_scripts", "tfrecords_tools", "benchmarks")
  for path in sorted((ROOT / folder).glob("*.py"))
  if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
}
# Flags of others: Beam, spm_train, TensorFlow Serving and its clients, Docker, gcloud, TensorBoard, pip, twine,
# ipykernel.
OTHERS = set(
  "setup_file enable_batching model_config_file method spot logdir no-deps strict local-dir member role "
  "force user_defined_symbols signal job-name dependency no-build-isolation user name "
  "max_sentencepiece_length enable_model_warmup per_process_gpu_memory_fraction max_num_load_retries "
  "model_config_file_poll_wait_seconds file_system_poll_wait_seconds gpus shm-size ulimit cpus rest_api_timeout_in_ms "
  "grpc_max_threads enable_grpc_healthcheck_service version_2_with_negative "
  "allow_version_labels_for_unavailable_models rest_api_enable_cors_support opset".split()
)
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A script by its path, or in a sentence by its name alone.
_SCRIPT = re.compile(r"^(?:\.?/?(?:tpu_scripts|tfrecords_tools|benchmarks)/)?(\w+\.py)$")


class Use(NamedTuple):
  """A flag as a page writes it; `value` is None where it gives none."""

  page: str
  script: str
  flag: str
  value: str | None


def named(path):
  return path.relative_to(ROOT).as_posix()


@functools.cache
def helpxml(script):
  done = run_command(SCRIPTS[script], "--helpxml")  # absl ends every help with status 1.
  assert done.stdout.startswith("<?xml"), (script, done.stdout[-500:], done.stderr[-2000:])
  return done.stdout


@functools.cache
def flags_of(script):
  """Name of each flag of a script → its choices, if it has any."""
  found = {"flagfile": set()}  # absl's own, which no help lists.
  for flag in ElementTree.fromstring(helpxml(script)).iter("flag"):
    choices = {choice.text for choice in flag.iter("enum_value")}
    found[flag.findtext("name")] = choices
    if flag.findtext("type") == "bool":
      found[f"no{flag.findtext('name')}"] = choices
    if flag.findtext("short_name"):
      found[flag.findtext("short_name")] = choices
  return found


def command_lines(text):
  """Shell lines of a page: of its blocks, fenced or indented, continued lines joined; and code within sentences."""
  blocks = [block for language, block in _FENCE.findall(text) if language in ("", "bash")]
  rest = _FENCE.sub("", text)
  blocks += re.findall(r"(?:^ {4}.*\n)+", rest, re.MULTILINE)
  for block in blocks:
    yield from re.sub(r"\\\n", " ", block).splitlines()
  yield from _CODE.findall(rest)


def text_of(path):
  """A page; of docs/migration.md without the first columns, which name other projects' commands."""
  text = path.read_text(encoding="utf-8")
  if path.suffix == ".sh":
    return f"```bash\n{text}```\n"
  return (
    re.sub(r"^\|[^|\n]*\|", "|", text, flags=re.MULTILINE) if path.name == "migration.md" else text
  )


def uses(path):
  """Every flag that a page gives to a script of this project."""
  for line in command_lines(text_of(path)):
    line = re.sub(r"\s#\s.*", "", line)
    try:
      words = shlex.split(line)
    except ValueError:  # A line of output, or half a quotation.
      words = line.split()
    script = ""
    for place, word in enumerate(words):
      found = _SCRIPT.match(word.strip("()"))
      if found and "/" in word:
        assert (ROOT / word).exists() or "…" in word, f"{named(path)}: {word}"
      if found and found[1] in SCRIPTS:
        script = found[1]
      elif word in ("&&", "||", "|", ";", "or", "--"):  # Behind a lone `--` stand Apache Beam's.
        script = ""
      elif script and re.match(r"--\w", word):
        flag, equals, value = word[2:].partition("=")
        following = words[place + 1] if place + 1 < len(words) else "--"
        given = value if equals else None if following.startswith("-") else following
        yield Use(named(path), script, flag, given)


@pytest.fixture(scope="module")
def all_uses():
  return [use for path in GUIDES for use in uses(path)]


def test_commands_have_the_flags_that_the_guides_give_them(all_uses):
  assert len(all_uses) > 150
  unknown = [use for use in all_uses if use.flag not in flags_of(use.script)]
  assert not unknown, "\n".join(map(str, unknown))
  for use in all_uses:
    choices = flags_of(use.script)[use.flag]
    if choices and use.value and not re.search("[…A-Z]", use.value):
      assert use.value.strip(",.;)") in choices, use
    if (
      use.flag == "flagfile"
      and use.value
      and use.value.startswith("recipes/")
      and "…" not in use.value
    ):
      assert (ROOT / use.value).is_file(), use


def test_flags_in_sentences_exist(all_uses):
  """`--flag` in a guide is a flag of some command here."""
  known = {flag for script in {use.script for use in all_uses} for flag in flags_of(script)}
  known |= OTHERS
  unknown = []
  for path in GUIDES:
    for code in _CODE.findall(_FENCE.sub("", text_of(path))):
      for flag in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", code):
        if flag[2:] not in known:
          unknown.append(f"{named(path)}: {code}")
  assert not unknown, "\n".join(map(str, unknown))


def test_vocabulary_and_records_of_a_block_read_the_text_alike():
  """A vocabulary of other sentences than the records has other pieces."""
  shared = ("input_format", "language")
  num_pairs = 0
  for path in GUIDES:
    for _, block in _FENCE.findall(text_of(path)):
      given = {}
      for line in re.sub(r"\\\n", " ", block).splitlines():
        words = line.split()
        script = words[1].rpartition("/")[2] if len(words) > 2 and words[0] == "python" else ""
        if script in ("train_vocab.py", "create_pretraining_data.py"):
          found = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
          given[script] = {name: found.get(name) for name in shared}
      if len(given) == 2:
        num_pairs += 1
        assert given["train_vocab.py"] == given["create_pretraining_data.py"], named(path)
  assert num_pairs >= 4


def test_results_say_in_every_cell_what_is_compared():
  """A reader who comes to one row need not read the rows above it."""
  page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
  rows = [line for line in page.splitlines() if line.startswith("|")]
  assert len(rows) > 50
  assert [row for row in rows if re.search(r"\| …|\b(ours|theirs)\b", row)] == []
  # The first table has the twelve figures.
  first_table = page.partition("## Twelve figures")[2].partition("\n\n## ")[0]
  assert len(re.findall(r"^\| ", first_table, re.MULTILINE)) == 1 + 12


def test_the_page_of_ones_own_domain_says_where_weights_are():
  page = (ROOT / "docs/own_domain.md").read_text(encoding="utf-8")
  assert "](downloads.md" in page.partition("## 2.")[0]


def test_readme_fits_on_three_screens():
  lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
  assert len(lines) <= 120


@pytest.fixture(scope="module")
def targets():
  """The targets of the Makefile."""
  makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
  return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_comments_of_python_blocks_stand_at_their_code():
  """A formatter that wraps a line leaves the line's comment at the closing bracket."""
  torn = []
  for path in GUIDES:
    for language, block in _FENCE.findall(path.read_text(encoding="utf-8")):
      if language in ("py", "python"):
        lines = re.findall(r"^ *[)\]}]+:? +#.*", block, re.MULTILINE)
        torn += [f"{named(path)}: {line}" for line in lines]
  assert not torn, "\n".join(torn)


def test_workflows_only_call_targets_of_make(targets):
  """So that GitHub and one's own machine run the same."""
  for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
    commands = re.findall(r"\brun: *(.*)", path.read_text(encoding="utf-8"))
    assert commands, path
    for command in commands:
      program, target = command.split()[:2]
      assert program == "make", f"{path.name}: {command}"
      assert target in targets, f"{path.name}: {command}"


def test_workflows_pin_actions_by_hash():
  """A tag of another's repository can be moved; the comment names it for a reader."""
  versions = {}
  for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
    for use in re.findall(r"\buses: *(.*)", path.read_text(encoding="utf-8")):
      found = re.fullmatch(r"([\w-]+/[\w-]+@[0-9a-f]{40})  # (v[\d.]+)", use)
      assert found, f"{path.name}: {use}"
      assert versions.setdefault(found[1].partition("@")[0], found.groups()) == found.groups(), use


def test_the_page_of_flags_is_that_of_the_commands():
  spec = importlib.util.spec_from_file_location("flags_page", ROOT / "docs/site/flags.py")
  flags_page = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(flags_page)
  page = flags_page.page(lambda command: helpxml(pathlib.Path(command).name))
  assert flags_page.PAGE.read_text(encoding="utf-8") == page, "Run: python docs/site/flags.py"


def test_targets_of_make_exist(targets):
  for path in [*GUIDES, ROOT / "CONTRIBUTING.md"]:
    for line in command_lines(path.read_text(encoding="utf-8")):
      found = re.search(r"(?:^|[$&] ?)make ((?:[a-z][\w-]* ?)+)(?:$|[A-Z#(])", line)
      assert not found or set(found[1].split()) <= targets, f"{named(path)}: {line}"


def headings(path):
  """The anchors of a page, as GitHub and MkDocs make them from its headings."""
  text = _FENCE.sub("", path.read_text(encoding="utf-8"))
  return {
    re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
  }


@pytest.mark.parametrize("path", [*PAGES, ROOT / "tests/README.md"], ids=named)
def test_links_lead_to_files_and_headings(path):
  text = _FENCE.sub("", path.read_text(encoding="utf-8"))
  for target in re.findall(r"\]\(([^)\s]+)\)", text):
    if re.match(r"\w+:", target):
      continue
    file, _, anchor = target.partition("#")
    there = (path.parent / file).resolve() if file else path
    assert there.exists(), target
    if anchor:
      assert anchor in headings(there), target


def test_call_paths_have_files_that_exist_and_are_counted():
  page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
  rows = re.findall(r"^\| [^|]+ \| (\d+) \((\d+)\) \| (.+) \|$", page, re.MULTILINE)
  assert len(rows) == 4
  for num_files, num_returns, path in rows:
    names = re.findall(r"`([\w/]+\.py)`", path)
    assert len(set(names)) == len(names) == int(num_files), path
    assert path.count("↩") == int(num_returns), path
    missing = [
      name for name in names if not any((ROOT / top / name).exists() for top in ("", "albert_tf"))
    ]
    assert not missing
    # A return is into a file that was opened before.
    returns = re.findall(r"`([\w/]+\.py)`[^`]*?↩ (\w+)", path)
    for last, target in returns:
      opened = [pathlib.Path(name).stem for name in names[: names.index(last)]]
      assert target in opened, (last, target)


def test_commands_of_the_pages_are_found_and_each_reason_is_needed():
  """What `command_blocks.py` runs and leaves out: a reason that no command has hides nothing, and goes."""
  commands = [of for page in command_blocks.pages() for of in command_blocks.commands_of(page)]
  assert len(commands) > 150
  assert sum(not command.reason for command in commands) > 60
  assert {command.reason for command in commands} - {""} == set(command_blocks._REASONS.values())


def test_the_tests_that_prove_a_claim_exist():
  page = (ROOT / "tests/README.md").read_text(encoding="utf-8")
  named_tests = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page)
  assert len(named_tests) > 50
  for file, test in named_tests:
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert f"def {test or 'test_'}" in text, (file, test)
