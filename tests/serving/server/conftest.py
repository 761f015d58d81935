"""A server of tiny exports in a process of its own."""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
import pathlib
import subprocess
import sys

import pytest
from support.commands.child_processes import ending_with_this
from support.serving import wire


@dataclasses.dataclass(frozen=True)
class Served:
  """A running server."""

  url: str
  grpc_address: str
  process: subprocess.Popen


@pytest.fixture(scope="session")
def exports(exported: Callable) -> dict[str, str]:
  """Version directories, by the name that they are served under."""
  keys = {"words": "fill_mask", "pairs": "pair", "value": "value", "answers": "squad_1.1"}
  return {name: exported(key).path for name, key in keys.items()}


@pytest.fixture(scope="session")
def served(exports: dict[str, str], repository_dir: pathlib.Path) -> Iterator[Served]:
  program = str(repository_dir / "tpu_scripts/serve_locally.py")
  models = [f"--saved_model={name}={path}" for name, path in exports.items()]
  command = [sys.executable, program, "--port=0", "--grpc_port=0", *models]
  with subprocess.Popen(ending_with_this(command), stdout=subprocess.PIPE, text=True) as process:
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
    assert wire.predict(server, "words", {"instances": ["the [MASK]"]}).status == 200
