"""Runs the tutorials with their own settings and stores what they print and draw. `make notebooks` calls it.

One after the other: the later ones start from the first one's model. Names on the command line choose some of them.
"""

import base64
import io
import pathlib
import sys

import nbclient
import nbformat
from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
TUTORIALS = (
  "pretrain_on_your_text",
  "fine_tune_a_classifier",
  "question_answering",
  "vectors_for_search",
  "answers_that_stop_early",
)
# Of a long output the beginning and the end are stored.
FIRST_LINES, LAST_LINES = 12, 16
PICTURE_WIDTH = 900
SECONDS_PER_CELL = 3 * 60 * 60


def main() -> None:
  for name in sys.argv[1:] or TUTORIALS:
    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
      notebook,
      timeout=SECONDS_PER_CELL,
      resources={"metadata": {"path": str(FOLDER)}},
      record_timing=False,
    ).execute()
    for cell in notebook.cells:
      if cell.cell_type == "code":
        cell.outputs = [_stored(output) for output in _joined(cell.outputs)]
    # The version of Python that ran them would change with each machine.
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)
    print(f"{name}: {path.stat().st_size:,} bytes")


def _joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
  """Streams arrive in pieces: what follows one another becomes one output. Warnings of stderr are left out."""
  joined: list[nbformat.NotebookNode] = []
  for output in outputs:
    if output.output_type == "stream" and output.name == "stderr":
      continue
    if output.output_type == "stream" and joined and joined[-1].output_type == "stream":
      joined[-1].text += output.text
    else:
      joined.append(output)
  return joined


def _stored(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
  """An output without paths of this machine, shortened, its picture small."""
  if output.output_type == "stream":
    output.text = _shortened(_without_paths(output.text))
  for kind, content in output.get("data", {}).items():
    if kind == "image/png":
      output.data[kind] = _small_picture(content)
    elif kind == "text/plain":
      output.data[kind] = _without_paths(content)
  return output


def _without_paths(text: str) -> str:
  return text.replace(f"{sys.prefix}/", "").replace(f"{ROOT}/", "").replace(str(ROOT), ".")


def _shortened(text: str) -> str:
  lines = text.splitlines(keepends=True)
  if len(lines) <= FIRST_LINES + LAST_LINES:
    return text
  return "".join([*lines[:FIRST_LINES], "…\n", *lines[-LAST_LINES:]])


def _small_picture(content: str) -> str:
  """A PNG of at most `PICTURE_WIDTH` pixels and 32 colours, in base64 as it came."""
  picture = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")
  if picture.width > PICTURE_WIDTH:
    height = round(picture.height * PICTURE_WIDTH / picture.width)
    picture = picture.resize((PICTURE_WIDTH, height), Image.Resampling.LANCZOS)
  stream = io.BytesIO()
  picture.quantize(32, dither=Image.Dither.NONE).save(stream, format="png", optimize=True)
  return base64.b64encode(stream.getvalue()).decode()


if __name__ == "__main__":
  main()
