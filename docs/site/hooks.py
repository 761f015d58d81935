"""What MkDocs adds to the guides: pages made from the README and the code, and links that leave docs/.

`mkdocs.yml` names this file; MkDocs calls the functions by their names.
"""

import os
import pathlib
import re
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND_FOLDERS = ("tfrecords_tools", "tpu_scripts")
# Page → the file it is made from.
COPIED = {
  "index.md": "README.md",
  "paper_map.md": "PAPER_MAP.md",
  "contributing.md": "CONTRIBUTING.md",
  "security.md": "SECURITY.md",
  "changelog.md": "CHANGELOG.md",
  "benchmarks/tpu_compile.md": "benchmarks/tpu_compile.md",
}
_PAGES = {source: page for page, source in COPIED.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_MAIN_ROOMS = (
  "configs",
  "tokenization",
  "modeling",
  "optim",
  "checkpoints",
  "models",
  "finetuning",
  "records",
  "training",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages that no file in docs/ holds."""
  pages = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in COPIED.items()}
  pages["reference/commands.md"] = commands_page()
  pages["reference/library.md"] = library_page()
  for name, text in pages.items():
    files.append(File.generated(config, name, content=text))
  return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
  """Rewrites links between files of the repository to links between pages; what is no page keeps its text."""
  source = COPIED.get(page.file.src_uri, f"docs/{page.file.src_uri}")

  def rewrite(link: re.Match[str]) -> str:
    image, text, target, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
    if not target or ":" in target:
      return link.group(0)
    path = os.path.normpath(os.path.join(os.path.dirname(source), target))
    name = _PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
    if files.get_file_from_path(name) is None:
      if path.startswith("docs/") or not (ROOT / path).exists():
        return link.group(0)  # MkDocs reports it.
      return text
    relative = os.path.relpath(name, os.path.dirname(page.file.src_uri) or ".")
    return f"{image}[{text}]({relative}{anchor})"

  return _LINK.sub(rewrite, markdown)


def commands_page() -> str:
  """Every command with its description and flags, as its own `--helpxml` gives them."""
  parts = ["# Commands\n", "Made from the commands themselves. `--help` of each prints the same.\n"]
  for folder in COMMAND_FOLDERS:
    for path in sorted((ROOT / folder).glob("*.py")):
      if "commands.run(" in path.read_text(encoding="utf-8"):
        parts.append(_command_section(f"{folder}/{path.name}"))
  return "\n".join(parts)


def _command_section(command: str) -> str:
  done = subprocess.run(
    [sys.executable, command, "--helpxml"],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    check=False,  # absl ends every help with status 1.
  )
  if not done.stdout.startswith("<?xml"):
    raise RuntimeError(f"{command} --helpxml says no XML: {done.stderr[-2000:]}")
  root = ElementTree.fromstring(done.stdout)
  summary = (root.findtext("usage") or "").strip()
  lines = [
    f"## {command}\n",
    f"```text\n{summary}\n```\n",
    "| flag | default | meaning |",
    "|---|---|---|",
  ]
  for flag in sorted(root.iter("flag"), key=lambda flag: flag.findtext("name") or ""):
    if flag.findtext("key") == "yes":
      lines.append(_flag_row(flag))
  return "\n".join([*lines, ""])


def _flag_row(flag: ElementTree.Element) -> str:
  cells: dict[str, str] = {child.tag: (child.text or "") for child in flag}
  choices = [child.text for child in flag.iter("enum_value") if child.text]
  meaning = re.sub(r"^<[^>]*>: ", "", " ".join(cells["meaning"].split()))
  if choices:
    meaning += f" One of: {', '.join(choices)}."
  default = cells.get("default", "").replace(
    f"{ROOT}/", ""
  )  # No paths of the machine that builds the site.
  cell = f"`{default}`" if default and default != "None" else ""
  return f"| `--{cells['name']}` | {_escaped(cell)} | {_escaped(meaning)} |"


def _escaped(text: str) -> str:
  return text.replace("|", "\\|").replace("<", "&lt;")


def library_page() -> str:
  """The documented names of the library, room by room."""
  parts: list[Any] = [
    "# Library\n",
    "Made from the docstrings. Shape letters: see the contributors' page.\n",
  ]
  for room in _MAIN_ROOMS:
    parts.append(f"## albert_tf.{room}\n")
    for path in sorted((ROOT / "albert_tf" / room).rglob("*.py")):
      if path.name != "__init__.py":
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        parts.append(f"::: {module}\n")
  return "\n".join(parts)
