"""What MkDocs adds to the guides: pages made from the README and the code, and links that leave docs/.

`mkdocs.yml` names this file; MkDocs calls the functions by their names.
"""

import os
import pathlib
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
# A cell that is a number with its unit, and the name of a flag: a narrow screen must not break either.
_FIGURE = re.compile(r"(<td[^>]*>[\d.,]+) (%|\w{1,3})(?=</td>)")
_FLAG = re.compile(r"<code>(--[\w=-]{1,28})</code>")
# In the order of the path from text to a server; the others are for the project itself.
_MAIN_ROOMS = (
  "keras_api",
  "configs",
  "tokenization",
  "records",
  "modeling",
  "optim",
  "checkpoints",
  "pretraining",
  "finetuning",
  "serving",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages that no file in docs/ holds."""
  pages = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in COPIED.items()}
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


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
  """Keeps figures and flags on one line."""
  html = _FIGURE.sub(r"\1&nbsp;\2", html)
  return _FLAG.sub(r'<code class="flag">\1</code>', html)


def library_page() -> str:
  """The documented names of the library, room by room."""
  parts: list[Any] = [
    "# Library\n",
    "Made from the docstrings. Shape letters: see the contributors' page.\n",
  ]
  for room in _MAIN_ROOMS:
    parts.append(f"## albert_tf.{room}\n")
    paths = sorted((ROOT / "albert_tf" / room).rglob("*.py"))
    if not paths:
      raise FileNotFoundError(f"albert_tf/{room} has no code: it was renamed.")
    for path in paths:
      if path.name != "__init__.py":
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        parts.append(f"::: {module}\n")
  return "\n".join(parts)
