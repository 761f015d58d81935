"""Fuzzers: few cases, always equal, in `make test`; many from fresh seeds in `make fuzz`."""

from collections.abc import Iterator

from fuzz.child import Child
from fuzz.fuzzing import CASES, SEED
import pytest
from serving.conftest import config, exported, model, run_dir, tokenizer  # noqa: F401


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
  yield (process := Child())
  if process.pool is not None:
    process.pool.shutdown()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
  if SEED:
    cases = ", ".join(f"{name} {count}" for name, count in CASES.items())
    terminalreporter.write_line(f"cases: {cases}")
