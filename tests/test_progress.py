"""Progress: a bar on a terminal alone; in a file a line now and then, and none of short works."""

import io

import pytest

from albert_tf import progress


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def clock(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  return now


def test_a_file_gets_a_line_every_half_minute(clock):
  stream = io.StringIO()
  with progress.bar(3_000_000_000, desc="Reading text", unit="B", stream=stream) as shown:
    for _ in range(300):
      clock[0] += 1
      shown.update(10_000_000)
  lines = stream.getvalue().splitlines()
  assert len(lines) == 10
  assert lines[0] == "Reading text: 0.3 of 3.0 GB (10%), about 0:04:30 left"
  short = io.StringIO()
  with progress.bar(5000, desc="Short", unit="files", stream=short) as shown:
    clock[0] += 20
    shown.update(5000)
  assert short.getvalue() == ""


def test_a_terminal_gets_a_bar(monkeypatch):
  monkeypatch.setattr(progress, "_BAR_AFTER_SECONDS", 0.0)
  terminal = Terminal()
  monkeypatch.setattr(progress.sys, "stderr", terminal)
  assert list(progress.track("abc", 3, desc="Letters", unit="letters")) == ["a", "b", "c"]
  assert "Letters:" in terminal.getvalue()
  assert "\n" not in terminal.getvalue()
  assert list(progress.track("abc", 3, desc="x", unit="y", shown=False)) == ["a", "b", "c"]
