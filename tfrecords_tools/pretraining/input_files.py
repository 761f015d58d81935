"""What "the same input" means: the names, sizes and content of its files, in order. The folder may be another.

Nobody reads a terabyte to start or to continue: before the work name, size and time of change stand for a file, and its
CRC32C is summed up where its text is read anyway. `--verify_input` reads everything first and compares the content.
"""

from collections.abc import Mapping, Sequence
import concurrent.futures
import functools
import hashlib
import json
import os
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.pretraining.shards import size_and_crc32c

_AT_ONCE = 16  # Files looked at together: a bucket takes its time to answer for each.


def describe_input(paths: Sequence[str], *, verify: bool = False) -> list[dict[str, Any]]:
  """Of each file `name`, `num_bytes`, `modified`; with `verify` it is read, and has its `crc32c`."""
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    return list(pool.map(functools.partial(_describe_file, verify=verify), paths))


def _describe_file(path: str, *, verify: bool) -> dict[str, Any]:
  size, modified = files.size_and_time(path)
  described = {"name": os.path.basename(path), "num_bytes": size, "modified": modified}
  if verify:
    described["num_bytes"], described["crc32c"] = size_and_crc32c(path)
  return described


def input_names_and_sizes(described: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """What is known of the same input in every run."""
  return [
    {name: value for name, value in file.items() if name not in ("modified", "crc32c")} for file in described
  ]


def input_differences(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> list[str]:
  """What tells that two inputs are not the same. Content decides where both know it, otherwise the time of change."""
  there, now = input_names_and_sizes(theirs), input_names_and_sizes(ours)
  if len(there) != len(now):
    return [f"input.files: there {len(there)}, now {len(now)}"]
  found = [
    f"input.files: there {json.dumps(a)}, now {json.dumps(b)}"
    for a, b in zip(there, now, strict=True)
    if a != b
  ]
  for a, b in () if found else zip(theirs, ours, strict=True):
    if "crc32c" in a and "crc32c" in b:
      if a["crc32c"] != b["crc32c"]:
        found.append(f"input.files: {b['name']}, crc32c there {a['crc32c']}, now {b['crc32c']}")
    elif a.get("modified", b["modified"]) != b["modified"]:
      found.append(
        f"input.files: {b['name']}, modified there {a['modified']}, now {b['modified']}; only where every run has "
        "--verify_input, content decides"
      )
  return found


def read_input(
  described: Sequence[Mapping[str, Any]], checksums: Mapping[int, tuple[int, str]]
) -> dict[str, Any]:
  """The input as the manifest shows it: with the content that was read.

  Args:
    described: of `describe_input`.
    checksums: of each file, by its place: the bytes that were read, and their CRC32C.

  Raises:
    UserError: a file is not what it was when the work began.
  """
  read = []
  for index, (file, before) in enumerate(zip(input_names_and_sizes(described), described, strict=True)):
    size, crc = checksums[index]
    if (size, crc) != (file["num_bytes"], before.get("crc32c", crc)):
      raise UserError(
        f"The input must not change while records are made of it. Received: {file['name']}, "
        f"{file['num_bytes']:,} bytes when the work began and {size:,} when it was read, or with other content. "
        "Remove the unfinished work and give the same command again."
      )
    read.append({**file, "crc32c": crc})
  return {"files": read, "sha256": hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()}
