"""Fuzzers: a short, always equal profile in `make test`; fresh seeds in `make fuzz` (`tests/support/fuzzing.py`)."""

from collections.abc import Iterator
import tempfile

import pytest
from support.fuzzing import CASES, SEED, Child


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
  with tempfile.TemporaryFile() as errors:
    process = Child(errors)
    yield process
    process.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
  if SEED:
    cases = [f"{name} {count}" for name, count in CASES.items()]
    terminalreporter.write_line(f"cases: {', '.join(cases)}")
