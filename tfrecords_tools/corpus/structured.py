"""Reads JSON lines and Parquet, where a field has each document's text."""

from collections.abc import Iterator
import contextlib
import json
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus.options import CorpusFile, Part
from tfrecords_tools.corpus.text import decode, read_text_lines, split_sentences

_PARQUET_ROWS = 64  # Rows decoded at a time.


def read_json_lines(file: CorpusFile) -> Iterator[Part]:
  """`jsonl`: one JSON object a line; its `text_field` is a string, or a list of sentences."""
  limit = file.options.max_record_bytes
  field = file.options.text_field
  for number, line in enumerate(read_text_lines(file, limit=limit), start=1):
    if not line.strip():
      continue
    where = f"{file.path}, line {number}"
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise UserError(
        "A file of --input_format=jsonl must hold one JSON object a line, of at most "
        f"{limit >> 20} MiB. Received: {line[:60]!r} in {where} ({error})."
      ) from error
    if not isinstance(record, dict):
      raise _no_field(field, where, type(record).__name__)
    if field not in record:
      raise _no_field(field, where, sorted(record))
    yield _sentences(record[field], where, file)
    yield None


def read_parquet(file: CorpusFile) -> Iterator[Part]:
  """`parquet`: one row a document; the column `text_field` is a string, or a list of sentences."""
  import pyarrow as pa  # A second to import, and most corpora are text.
  import pyarrow.parquet as pq

  # Some rows at a time and one column: a row of other columns may be large.
  field = file.options.text_field
  row = 0
  try:
    with files.open_binary(file.path) as raw:
      table = pq.ParquetFile(raw, pre_buffer=False)
      if field not in table.schema_arrow.names:
        raise _no_field(field, file.path, sorted(table.schema_arrow.names))
      for batch in table.iter_batches(_PARQUET_ROWS, columns=[field], use_threads=False):
        for value in _as_bytes(batch.column(0), pa):
          row += 1
          yield _sentences(value, f"{file.path}, row {row}", file)
          yield None
          file.stats.bytes_read += sum(len(item) for item in _items(value))
  except UserError:
    raise
  # The last where the names of columns are not UTF-8.
  except (pa.ArrowException, OSError, ValueError) as error:
    raise UserError(
      f"A file of --input_format=parquet must be a complete one. Received: {file.path}, which cannot "
      f"be read behind row {row} ({' '.join(str(error).split())}). Copy it again, or leave it out."
    ) from error


def _no_field(name: str, where: str, received: object) -> UserError:
  return UserError(
    f"Records must have the column {name!r}. Received: {received} in {where}. Name it with "
    "--text_field."
  )


def _as_bytes(column: Any, pa: Any) -> list[Any]:
  """Values of Arrow's columns of text as bytes, of other types as they are.

  Arrow's own conversion to text would stop at bad UTF-8.
  """
  # Repeated texts are stored once.
  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  type_of_bytes = pa.large_binary()
  if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
    type_of_bytes = pa.large_list(type_of_bytes)
  with contextlib.suppress(pa.ArrowNotImplementedError):
    column = column.cast(type_of_bytes)
  return column.to_pylist()


def _items(value: Any) -> list[Any]:
  """The texts of a field, or what it holds in place of them."""
  items = value
  if not isinstance(value, list):
    items = [value]
  return [item for item in items if item is not None]


def _sentences(value: Any, where: str, file: CorpusFile) -> list[str]:
  """The sentences of a text, or of a list of them.

  Args:
    value: strings, or bytes of UTF-8.
    where: the record, for messages.
    file: that holds it.
  """
  # A list has sentences; a text is split into them, line by line.
  sentences: list[str] = []
  for item in _items(value):
    if isinstance(item, str):
      # JSON can escape half a surrogate pair, which is no character of UTF-8.
      item = item.encode(errors="surrogatepass")
    if not isinstance(item, bytes):
      raise UserError(
        f"The column {file.options.text_field!r} must hold text, or lists of sentences. Received: "
        f"{type(item).__name__} in {where}. Name another with --text_field."
      )
    text = decode(item, file.stats)
    if isinstance(value, list):
      sentences.append(" ".join(text.split()))
    else:
      for line in text.splitlines():
        sentences += split_sentences(line, language=file.options.language)
  sentences = [sentence for sentence in sentences if sentence]
  if not sentences:
    file.stats.skipped_records += 1
  return sentences
