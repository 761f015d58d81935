"""The shell commands of docs/tpu.md: valid, with variables that are set, and nothing is left that costs money."""

import pathlib
import re
import subprocess

import pytest

_PAGE = (pathlib.Path(__file__).parents[2] / "docs/tpu.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```bash\n(.*?)^```$", _PAGE, re.DOTALL | re.MULTILINE)
# One of the blocks goes in another shell from the creation of a slice to its end.
_SLICE = next(block for block in _BLOCKS if block.startswith("# In another shell"))


def test_every_block_is_valid_bash():
  for block in _BLOCKS:
    script = re.sub(r"^tpu\$ ", "", block, flags=re.MULTILINE).replace("<this repository>", "URL")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, (block, done.stderr)


def test_variables_are_set_before_they_are_used():
  known = set()
  for block in _BLOCKS:
    known |= set(re.findall(r"\b(\w+)=", block)) | set(re.findall(r"\bfor (\w+) in", block))
    assert set(re.findall(r"\$\{?([A-Za-z]\w*)", block)) <= known, block


# What costs money → how it is deleted.
_CREATED = {
  "compute tpus tpu-vm create $TPU --zone=$ZONE": "compute tpus tpu-vm delete $TPU --zone=$ZONE",
  "compute tpus queued-resources create $TPU": "compute tpus queued-resources delete $TPU",
  "storage buckets create $BUCKET": "storage rm -r $BUCKET",
}


def test_every_creation_is_known_here():
  assert _PAGE.count(" create $") == sum(_PAGE.count(f"gcloud {create}") for create in _CREATED)


@pytest.mark.parametrize("text", [_PAGE, _SLICE], ids=["page", "slice"])
def test_what_is_created_is_deleted_at_the_end(text):
  for create, delete in _CREATED.items():
    assert text.rfind(f"gcloud {create}") <= text.rfind(f"gcloud {delete}"), create
