"""The recorded files themselves: small, described, and compared element by element."""

from support.goldens import GOLDENS


def test_every_file_is_described_and_all_are_small():
  files = [path for path in GOLDENS.iterdir() if path.name not in ("README.md", "__pycache__")]
  guide = (GOLDENS / "README.md").read_text(encoding="utf-8")
  assert [path.name for path in files if path.name not in guide] == []
  assert sum(path.stat().st_size for path in GOLDENS.rglob("*") if path.is_file()) < 6_000_000
