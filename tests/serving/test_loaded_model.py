"""Versions that the local server and other commands load, and those that they cannot."""

import pathlib
import shutil

import pytest

from albert_tf.errors import UserError
from albert_tf.serving.loaded_model import find_version, open_version


@pytest.fixture
def folder(exported, tmp_path: pathlib.Path) -> pathlib.Path:
  """A folder of one version, 1."""
  shutil.copytree(exported("value").path, tmp_path / "e/1")
  return tmp_path / "e"


def test_an_empty_folder_is_no_version_and_is_told(folder: pathlib.Path, caplog) -> None:
  (folder / "2").mkdir()
  (folder / "3").touch()
  assert find_version(str(folder)) == str(folder / "1")
  assert f"{folder}/2 is left out" in caplog.text
  shutil.rmtree(folder / "1")
  with pytest.raises(UserError, match=f"Received: {folder}, "):
    find_version(str(folder))


def cut_weights(version: pathlib.Path) -> None:
  [data] = version.glob("variables/*.data-*")
  data.write_bytes(data.read_bytes()[:1000])


def change_weights(version: pathlib.Path) -> None:
  [data] = version.glob("variables/*.data-*")
  content = bytearray(data.read_bytes())
  content[500:600] = bytes(100)
  data.write_bytes(content)


def cut_graph(version: pathlib.Path) -> None:
  graph = version / "saved_model.pb"
  graph.write_bytes(graph.read_bytes()[:50_000])


@pytest.mark.parametrize(
  ("damage", "reason"),
  [
    (cut_weights, "Read less bytes than requested"),
    (change_weights, "Checksum does not match"),
    (cut_graph, "Error parsing message"),
    (lambda version: shutil.rmtree(version / "variables"), "not a valid checkpoint"),
    (lambda version: (version / "saved_model.pb").unlink(), "SavedModel file does not exist"),
    (lambda version: (version / "saved_model.pb").write_bytes(b""), "could not be found"),
  ],
)
def test_a_damaged_version_is_named(folder: pathlib.Path, damage, reason: str) -> None:
  damage(folder / "1")
  with pytest.raises(UserError, match=f"Received: {folder}/1 .*{reason}"):
    open_version(str(folder))
