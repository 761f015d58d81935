"""A run directory with random weights and what is in it; tiny exports, and a server of them."""

from collections.abc import Iterator
import dataclasses
import itertools
import pathlib
import subprocess
import sys

import pytest
from reference import serving_requests, tiny_run

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.serving import export_saved_model
from albert_tf.tokenization import AlbertTokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
  return tiny_run.train_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def model(tokenizer: AlbertTokenizer) -> AlbertForPreTraining:
  return tiny_run.tiny_model(tokenizer.vocab_size)


@pytest.fixture(scope="session")
def config(model: AlbertForPreTraining) -> AlbertConfig:
  return model.config


@pytest.fixture(scope="session")
def run_dir(
  model: AlbertForPreTraining, tokenizer: AlbertTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
  directory = tmp_path_factory.mktemp("run") / "run"
  tiny_run.write_run(directory, model, tokenizer)
  return directory


@dataclasses.dataclass(frozen=True)
class Served:
  """A server of the tiny exports in a process of its own."""

  url: str
  grpc_address: str
  process: subprocess.Popen


@pytest.fixture(scope="session")
def exports(
  run_dir: pathlib.Path,
  config: AlbertConfig,
  tokenizer: AlbertTokenizer,
  tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
  """Version directories of tiny models, by the name that they are served under."""
  root = tmp_path_factory.mktemp("exports")
  paths = {
    "words": export_saved_model(model="fill_mask", init_checkpoint=str(run_dir), output_dir=str(root / "w"))
  }
  for name, task in tiny_run.SERVED_TASKS.items():
    tiny_run.write_fine_tuned_run(root / name / "run", task, config, tokenizer)
    kind = "classifier" if task.kind in ("classification", "regression") else task.kind
    paths[name] = export_saved_model(
      model=kind, init_checkpoint=str(root / name / "run"), output_dir=str(root / name / "export")
    )
  return paths


@pytest.fixture(scope="session")
def served(exports: dict[str, str], repository_dir: pathlib.Path) -> Iterator[Served]:
  command = [
    sys.executable,
    str(repository_dir / "tpu_scripts/serve_locally.py"),
    "--port=0",
    "--grpc_port=0",
  ]
  command += [f"--saved_model={name}={path}" for name, path in exports.items()]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    lines = list(itertools.takewhile(lambda line: "browser" not in line, iter(process.stdout.readline, "")))
    words = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("REST", "gRPC"))}
    assert set(words) == {"REST", "gRPC"}, "the server ended before it was ready"
    yield Served(words["REST"].split("/v1/")[0], words["gRPC"], process)
    assert process.poll() is None, "a test ended the server"
    process.terminate()
    assert process.wait(30) == 0


@pytest.fixture(autouse=True)
def still_answers(request: pytest.FixtureRequest) -> Iterator[None]:
  """After each test that talks to the server, the same process answers."""
  yield
  if "served" in request.fixturenames:
    server = request.getfixturevalue("served")
    assert server.process.poll() is None
    assert serving_requests.predict(server, "words", {"instances": ["the [MASK]"]}).status == 200
