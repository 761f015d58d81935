"""A run directory with random weights, and one export of every kind, made at its first use."""

from collections.abc import Callable, Iterator
import contextlib
import functools
import pathlib
import threading
from typing import Any, NamedTuple

import pytest
from support import tiny_run

from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.keras_api.tasks import open_model
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.serving.loaded_model import LoadedModel
from albert_tf.tokenization import AlbertTokenizer

_TAGS = ("O", "B-X", "I-X", "I-Y")
SQUAD = functools.partial(
  TaskSpec,
  kind="question_answering",
  name="squad",
  max_seq_length=24,
  max_query_length=8,
  doc_stride=6,
  max_answer_length=5,
)
TASKS = {
  "pair": TaskSpec(
    kind="classification", name="t", label_names=("no", "yes", "both"), pair=True, max_seq_length=16
  ),
  "labels": TaskSpec(
    kind="multi_label",
    name="l",
    label_names=("bird", "sky", "tree"),
    thresholds=(0.0, 0.5, 1.0),
    max_seq_length=16,
    exit_depths=(1, 2),
  ),
  "value": TaskSpec(kind="regression", name="v", max_seq_length=20, exit_depths=(1, 2)),
  "squad_1.1": SQUAD(squad_version="1.1"),
  "squad_2.0": SQUAD(squad_version="2.0", null_score_diff_threshold=-0.3),
  "vectors": TaskSpec(kind="sentence_vectors", name="s", max_seq_length=16, exit_depths=(1, 2)),
  "choice": TaskSpec(kind="multiple_choice", name="c", max_seq_length=24, max_qa_length=10),
  "tags": TaskSpec(kind="token_classification", name="t", label_names=_TAGS, max_seq_length=12),
}


class Exported(NamedTuple):
  """An export: its task if it was fine-tuned, its Keras model, and the session that servers have."""

  task: TaskSpec | None
  model: Any
  path: str  # The version's directory.
  session: LoadedModel
  source: str  # The run directory.


@pytest.fixture(scope="session")
def tokenizer() -> AlbertTokenizer:
  return tiny_run.tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer: AlbertTokenizer) -> AlbertForPreTraining:
  return tiny_run.tiny_model(tokenizer.vocab_size)


@pytest.fixture(scope="session")
def config(model: AlbertForPreTraining) -> AlbertConfig:
  return model.config


@pytest.fixture(scope="session")
def run_dir(model, tokenizer, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  directory = tmp_path_factory.mktemp("run") / "run"
  tiny_run.write_run(directory, model, tokenizer)
  return directory


@pytest.fixture(scope="session")
def exported(
  model, config, tokenizer, run_dir, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Exported]:
  """A key of `TASKS`, "encoder" or "fill_mask" → its export."""

  @functools.cache
  def make(key: str) -> Exported:
    folder = tmp_path_factory.mktemp(key)
    task, keras_model, source, kind = TASKS.get(key), model, run_dir, key
    if task is not None:
      source = folder / "run"
      keras_model = tiny_run.write_fine_tuned_run(source, task, config, tokenizer)
      kind = task.export_kind
    path = str(folder / "e/3")
    depths = (1, 2) if key == "fill_mask" else ()
    open_model(kind, str(source)).export(path, max_windows=12, depths=depths)
    return Exported(task, keras_model, path, LoadedModel(path), str(source))

  return make


@contextlib.contextmanager
def serving(exported: Callable[[str], Exported], names: str) -> Iterator[Any]:
  """A local server of exports, such as "words=fill_mask value=value"."""
  from albert_tf.serving.server import LocalServer

  pairs = [word.split("=") for word in names.split()]
  server = LocalServer([f"{name}={exported(key).path}" for name, key in pairs])
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


@pytest.fixture(scope="session")
def served(exported: Callable[[str], Exported]) -> Iterator[Any]:
  with serving(exported, "words=fill_mask pairs=pair value=value") as server:
    yield server
