"""The tutorials run from the first cell to the last, with small settings in place of their first ones.

What they print and draw is stored in them; `make notebooks` stores it again.
"""

import json
import pathlib

import pytest

pytest.importorskip("nbclient", reason="notebooks are executed on the default stack")

SMALL = {  # In order: the later ones start from what the first leaves.
  "pretrain_on_your_text": {"MEGABYTES": 0.3, "VOCAB_SIZE": 500, "STEPS": 4, "WARMUP": 1},
  "fine_tune_a_classifier": {"EPOCHS": 1, "PER_CLASS": 40},
  "question_answering": {"STEPS": 2, "PER_LIBRARY": 6},
  "vectors_for_search": {"EPOCHS": 1, "PER_LIBRARY": 40},
  "answers_that_stop_early": {"EPOCHS": 1},
}
FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "tutorials"


def test_outputs_are_stored_and_small():
  paths = sorted(FOLDER.glob("*.ipynb"))
  assert {path.stem for path in paths} == set(SMALL)
  assert sum(path.stat().st_size for path in paths) < 600_000
  for path in paths:
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells), path.stem
    assert any(cell["outputs"] for cell in cells), path.stem
    assert str(FOLDER.parents[1]) not in text, f"{path.stem}: a path of this machine"


@pytest.mark.slow
def test_tutorials_run_from_the_first_cell_to_the_last(tmp_path, repository_dir, monkeypatch):
  import nbclient
  import nbformat

  monkeypatch.setenv("PYTHONPATH", str(repository_dir))
  for name, settings in SMALL.items():
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    stored = [bool(cell.get("outputs")) for cell in notebook.cells]
    (parameters,) = (
      cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())
    )
    given = {
      **settings,
      "FOLDER": str(tmp_path / "tutorial"),
      "RUN": str(tmp_path / "tutorial/run"),
    }
    parameters.source += "".join(
      f"\n{key} = {value!r}" for key, value in given.items() if key in parameters.source
    )
    nbclient.NotebookClient(
      notebook, timeout=300, resources={"metadata": {"path": FOLDER}}
    ).execute()
    printed = [bool(cell.get("outputs")) for cell in notebook.cells]
    # A stored output belongs to a cell that still prints something, as far as its standard output goes.
    assert all(now or not before for now, before in zip(printed, stored, strict=True)), name
