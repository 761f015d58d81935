"""Which record file a reader's failure means, found without reading the whole corpus."""

from collections.abc import Sequence
import re
import struct

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import read_records
from albert_tf.records.tfrecord import FOOTER_BYTES, HEADER_BYTES, masked_crc32c

_BYTE = re.compile(r"(?:corrupted|truncated) record at (\d+)")  # Of the length or, 12 further, of the data.
_READ_AT_MOST = 1 << 30  # Bytes whose checksums are computed: some seconds, or a shard or two.


def find_fault(paths: Sequence[str], message: str) -> str | None:
  """Names the file that is gone or the record that is damaged.

  Files that the message names are looked at first; else those with damage at the byte it names; else as
  many as `_READ_AT_MOST` allows.

  Args:
    paths: record files.
    message: what TensorFlow's reader said.

  Returns:
    A message for a person; None where nothing wrong was found.
  """
  named = [path for path in paths if path in message]
  for path in named or paths:
    if not files.exists(path):
      return f"Record files must stay where they are while a run reads them. Received: {path}, which is gone."
  suspects = named or list(paths)
  byte = _BYTE.search(message)
  if byte:
    offsets = (int(byte[1]), int(byte[1]) - HEADER_BYTES)
    hits = [path for path in suspects if any(_is_damaged_at(path, offset) for offset in offsets)]
    suspects = hits or suspects
  left = _READ_AT_MOST
  for path in suspects:
    left -= files.size(path)
    if left < 0:
      break
    try:
      for _ in read_records(path):
        pass
    except UserError as error:
      return f"{error} Or train with --on_bad_record=skip."
  if not byte:
    return None
  where = suspects[0] if len(suspects) == 1 else f"one of {len(suspects)} files, the first {suspects[0]}"
  return (
    f"Every record of a TFRecord file must be whole. Received: a damaged one at byte {byte[1]} of {where}. "
    "tfrecords_tools/inspect_records.py --validate finds it; make the file again, or train with "
    "--on_bad_record=skip."
  )


def _is_damaged_at(path: str, offset: int) -> bool:
  """Whether a record begins at `offset` whose length is whole and whose data is not."""
  size = files.size(path)
  if not 0 <= offset <= size - HEADER_BYTES:
    return False
  with files.open_binary(path) as stream:
    stream.seek(offset)
    header = stream.read(HEADER_BYTES)
    length, crc = struct.unpack("<QI", header)
    if masked_crc32c(header[:8]) != crc:
      return False
    data, footer = stream.read(min(length, size)), stream.read(FOOTER_BYTES)
  return len(footer) < FOOTER_BYTES or masked_crc32c(data) != struct.unpack("<I", footer)[0]
