"""The tutorials run from the first cell to the last, with small settings in place of their first ones."""

import pytest

pytest.importorskip("nbclient", reason="notebooks are executed on the default stack")

SMALL = {  # In order: the later ones start from what the first leaves.
  "pretrain_on_your_text": {"MEGABYTES": 0.3, "VOCAB_SIZE": 500, "STEPS": 4, "WARMUP": 1},
  "fine_tune_a_classifier": {"EPOCHS": 1, "PER_CLASS": 40},
  "question_answering": {"STEPS": 2, "PER_LIBRARY": 6},
}


@pytest.mark.slow
def test_tutorials_run_from_the_first_cell_to_the_last(tmp_path, repository_dir, monkeypatch):
  import nbclient
  import nbformat

  monkeypatch.setenv("PYTHONPATH", str(repository_dir))
  folder = repository_dir / "docs" / "tutorials"
  assert {path.stem for path in folder.glob("*.ipynb")} == set(SMALL)
  for name, settings in SMALL.items():
    notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
      "commit notebooks without outputs"
    )
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
      notebook, timeout=300, resources={"metadata": {"path": folder}}
    ).execute()
