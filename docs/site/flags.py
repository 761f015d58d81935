"""Writes docs/flags.md: the flags of every command with their defaults, from its own `--helpxml`.

`python docs/site/flags.py` writes it; tests/test_documentation.py says when it is out of date.
"""

from collections.abc import Callable
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "flags.md"
FOLDERS = ("tfrecords_tools", "tpu_scripts")
INTRODUCTION = """# Flags

Every flag of every command, with its default. `--help` of a command prints the same. A flag that is true
or false also exists with `no` before its name, such as `--noexport`. `--flagfile=FILE` reads flags from a
file; a later flag wins. A flag that does not exist is refused, in a file too.
`python docs/site/flags.py` makes this page from the commands.
"""


class Flag(NamedTuple):
  """One line of the page."""

  name: str
  default: str
  meaning: str


def commands() -> list[str]:
  """The scripts that parse flags, such as "tpu_scripts/run_glue.py"."""
  found = []
  for folder in FOLDERS:
    for path in sorted((ROOT / folder).glob("*.py")):
      if "commands.run(" in path.read_text(encoding="utf-8"):
        found.append(f"{folder}/{path.name}")
  return found


def helpxml_of(command: str) -> str:
  """What `--helpxml` of a command prints; absl ends it with status 1."""
  done = subprocess.run(
    [sys.executable, command, "--helpxml"],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )
  if not done.stdout.startswith("<?xml"):
    raise RuntimeError(f"{command} --helpxml says no XML: {done.stderr[-2000:]}")
  return done.stdout


def page(helpxml: Callable[[str], str]) -> str:
  """The text of the page; `helpxml` gives the XML of a command."""
  summaries = {}
  flags = {}
  for command in commands():
    root = ElementTree.fromstring(helpxml(command))
    summaries[command] = (root.findtext("usage") or "").strip().partition("\n")[0]
    own = [flag for flag in root.iter("flag") if flag.findtext("key") == "yes"]
    flags[command] = sorted(_flag(flag) for flag in own)

  # What is the same for all fine-tuning commands stands once.
  fine_tuning = [
    command for command in flags if "num_train_epochs" in {f.name for f in flags[command]}
  ]
  shared = [flag for flag in flags[fine_tuning[0]] if all(flag in flags[c] for c in fine_tuning)]
  parts = [INTRODUCTION]
  for command, of_command in flags.items():
    parts += [f"## {command.rpartition('/')[2]}\n", f"`{command}`: {summaries[command]}\n"]
    if command in fine_tuning:
      parts.append(
        "It also has the flags of [all fine-tuning commands](#all-fine-tuning-commands).\n"
      )
      of_command = [flag for flag in of_command if flag not in shared]
    parts.append(_table(of_command))
  names = ", ".join(f"`{command.rpartition('/')[2]}`" for command in fine_tuning)
  parts += ["## All fine-tuning commands\n", f"{names}.\n", _table(shared)]
  return "\n".join(parts)


def _flag(element: ElementTree.Element) -> Flag:
  choices = [choice.text for choice in element.iter("enum_value") if choice.text]
  # absl writes the choices of a flag before its meaning: "<a|b>: meaning".
  meaning = re.sub(r"^<[^>]*>: ", "", " ".join((element.findtext("meaning") or "").split()))
  if choices:
    meaning += f" One of: {', '.join(choices)}."
  # No path of the machine that makes the page.
  default = (element.findtext("default") or "").replace(f"{ROOT}/", "")
  if default == "None":
    default = ""
  return Flag(element.findtext("name") or "", default, meaning)


def _table(flags: list[Flag]) -> str:
  lines = ["| flag | default | meaning |", "|---|---|---|"]
  for flag in flags:
    default = f"`{flag.default}`" if flag.default else ""
    lines.append(f"| `--{flag.name}` | {_escaped(default)} | {_escaped(flag.meaning)} |")
  return "\n".join(lines + [""])


def _escaped(text: str) -> str:
  return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
  PAGE.write_text(page(helpxml_of), encoding="utf-8")
