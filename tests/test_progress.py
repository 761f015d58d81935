"""Progress: a bar on a terminal, whole lines in a file, and nothing for short work."""

import io
import sys

from albert_tf import progress


def test_short_works_say_nothing_and_long_ones_a_line_in_a_file(monkeypatch):
  stream = io.StringIO()
  monkeypatch.setattr(sys, "stderr", stream)
  with progress.bar(5000, desc="Short", unit="files") as shown:
    shown.update(5000)
  assert stream.getvalue() == ""
  with progress.bar(3_000_000_000, desc="Reading text", unit="B") as shown:
    shown.start_t -= 60
    shown.last_print_t -= 60
    shown.update(300_000_000)
  assert "Reading text: 300M/3.00GB (10%), " in stream.getvalue()
