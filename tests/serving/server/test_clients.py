"""The example clients, as someone runs them who has not installed this project."""

import ast
import json
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

ALLOWED = {
  "rest_client.py": {"requests"},
  "grpc_client.py": {"grpc", "tensorflow", "tensorflow_serving"},  # All come with tensorflow-serving-api.
}


def run(repository_dir: pathlib.Path, name: str, *arguments: str | bytes) -> subprocess.CompletedProcess[str]:
  program = repository_dir / "tpu_scripts/serving_clients" / name
  command = [sys.executable, "-I", str(program), *arguments]
  return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=os.path.sep)


@pytest.mark.parametrize("name", ALLOWED)
def test_clients_import_nothing_else(repository_dir: pathlib.Path, name: str) -> None:
  tree = ast.parse((repository_dir / "tpu_scripts/serving_clients" / name).read_text())
  imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
  imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
  assert {module.split(".")[0] for module in imported} - set(sys.stdlib_module_names) == ALLOWED[name]


def test_rest_client(served, repository_dir: pathlib.Path) -> None:
  def ask(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
    return run(repository_dir, "rest_client.py", f"--url={served.url}", *arguments)

  done = ask("--model=words", "--input=text=[MASK] is blue", b"--input=text=\xff [MASK] [MASK]")
  assert done.returncode == 0, done.stderr
  predictions = json.loads(done.stdout)["predictions"]
  assert [row["num_masks"] for row in predictions] == [1, 2]
  pair = ["--model=pairs", "--input=text=the sky", "--input=text_pair=old trees", "--signature=examples"]
  done = ask("--method=classify", *pair)
  assert [label for label, _ in json.loads(done.stdout)["results"][0]] == ["no", "yes", "both"]
  assert "serving_default" in ask("--model=words", "--method=metadata").stdout
  assert "AVAILABLE" in ask("--model=words", "--method=status").stdout
  for wrong, says in [
    (["--model=nobody", "--input=text=a"], "HTTP 404: Servable not found"),
    (["--model=pairs", "--input=text=a"], "HTTP 400: Failed to process element"),
    (["--model=pairs", "--input=text=a", "--input=text=b", "--input=text_pair=c"], "as many values"),
    (["--input=text"], "must be NAME=VALUE"),
    (["--url=http://127.0.0.1:1", "--input=text=a"], "does not answer"),
  ]:
    done = ask(*wrong)
    assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr


def test_grpc_client(served, repository_dir: pathlib.Path) -> None:
  done = run(
    repository_dir, "grpc_client.py", f"--address={served.grpc_address}", "--model=words",
    "--input=text=[MASK] is blue", b"--input=text=\xff [MASK] [MASK]",
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert "num_masks: [1, 2]" in done.stdout


def test_grpc_client_by_every_method(
  served, repository_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  program = runpy.run_path(str(repository_dir / "tpu_scripts/serving_clients/grpc_client.py"))

  def ask(*arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["grpc_client.py", f"--address={served.grpc_address}", *arguments])
    program["main"]()
    return capsys.readouterr().out

  pair = ["--input=text=the sky", "--input=text_pair=old trees", "--signature=examples"]
  assert ask("--model=pairs", "--method=classify", *pair).startswith("no 0.")
  value = ask("--model=value", "--method=regress", "--input=text=the sky", "--signature=examples")
  assert abs(float(value)) < 100
  assert "serving_default: text -> " in ask("--model=words", "--method=metadata")
  assert ask("--model=words", "--method=status") == "version 3: AVAILABLE\n"
  with pytest.raises(SystemExit, match="error: NOT_FOUND"):
    ask("--model=nobody", "--input=text=a")
  with pytest.raises(SystemExit, match="as many values"):
    ask("--model=pairs", "--input=text=a", "--input=text=b", "--input=text_pair=c")
