"""The shell commands of the pages on Cloud TPU: valid, variables are set, and nothing is left that costs money."""

import pathlib
import re
import subprocess

import pytest

_DOCS = pathlib.Path(__file__).parents[2] / "docs"
# Each page is followed from its first command to its last.
_PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_DOCS.glob("tpu*.md"))}
# The two that create machines.
_GUIDE, _SLICE = _PAGES["tpu"], _PAGES["tpu_slices"]
_each_page = pytest.mark.parametrize("page", _PAGES.values(), ids=_PAGES)


def blocks(page):
  return re.findall(r"^```bash\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_both_guides_have_commands():
  assert len(blocks(_GUIDE)) > 10
  assert len(blocks(_SLICE)) == 2


@_each_page
def test_every_block_is_valid_bash(page):
  for block in blocks(page):
    script = re.sub(r"^tpu\$ ", "", block, flags=re.MULTILINE)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, (block, done.stderr)


@_each_page
def test_variables_are_set_before_they_are_used(page):
  known = set()
  for block in blocks(page):
    known |= set(re.findall(r"\b(\w+)=", block)) | set(re.findall(r"\bfor (\w+) in", block))
    assert set(re.findall(r"\$\{?([A-Za-z]\w*)", block)) <= known, block


# What costs money → how it is deleted.
_CREATED = {
  "compute tpus tpu-vm create $TPU --zone=$ZONE": "compute tpus tpu-vm delete $TPU --zone=$ZONE",
  "compute tpus queued-resources create $TPU": "compute tpus queued-resources delete $TPU",
  "storage buckets create $BUCKET": "storage rm -r $BUCKET",
}


@_each_page
def test_every_creation_is_known_here(page):
  assert page.count(" create $") == sum(page.count(f"gcloud {create}") for create in _CREATED)


@_each_page
def test_what_is_created_is_deleted_at_the_end(page):
  for create, delete in _CREATED.items():
    assert page.rfind(f"gcloud {create}") <= page.rfind(f"gcloud {delete}"), create
