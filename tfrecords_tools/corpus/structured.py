"""Reads JSON lines and Parquet, where a field has each document's text."""

from collections.abc import Iterable, Iterator
import contextlib
import itertools
import json
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus.bytestreams import decode, read_text_lines
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats
from tfrecords_tools.corpus.sentences import DocumentBuilder, split_sentences

PARQUET_MAGIC = b"PAR1"
_PARQUET_ROWS = 64  # Rows decoded at a time.


def read_json_lines(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`jsonl`: one JSON object a line; its `text_field` is a string, or a list of sentences."""
  limit = options.max_record_bytes
  for number, line in enumerate(read_text_lines(chunks, stats=stats, limit=limit), 1):
    if not line.strip():
      continue
    where = f"{path}, line {number}"
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise UserError(
        f"A file of --input_format=jsonl must hold one JSON object a line, of at most {limit >> 20} MiB. "
        f"Received: {line[:60]!r} in {where} ({error})."
      ) from error
    if not isinstance(record, dict) or options.text_field not in record:
      received = sorted(record) if isinstance(record, dict) else type(record).__name__
      raise UserError(_no_field(options.text_field, where, received))
    yield from _text_document(record[options.text_field], where, options=options, stats=stats)


def read_parquet(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`parquet`: one row a document; the column `text_field` is a string, or a list of sentences."""
  import pyarrow as pa  # A second to import, and most corpora are text.
  import pyarrow.parquet as pq

  row = 0
  try:
    with files.open_binary(path) as raw:
      table = pq.ParquetFile(raw, pre_buffer=False)
      if options.text_field not in table.schema_arrow.names:
        raise UserError(_no_field(options.text_field, path, sorted(table.schema_arrow.names)))
      for batch in table.iter_batches(
        batch_size=_PARQUET_ROWS, columns=[options.text_field], use_threads=False
      ):
        for value in _as_bytes(batch.column(0), pa):
          row += 1
          yield from _text_document(value, f"{path}, row {row}", options=options, stats=stats)
          items = value if isinstance(value, list) else [value]
          stats.bytes_read += sum(map(len, filter(None, items)))
  except UserError:
    raise
  except (pa.ArrowException, OSError, ValueError) as error:  # The last: names of columns that are not UTF-8.
    raise UserError(
      f"A file of --input_format=parquet must be a complete one. Received: {path}, which cannot be read behind row "
      f"{row} ({' '.join(str(error).split())}). Copy it again, or leave it out."
    ) from error


def _as_bytes(column: Any, pa: Any) -> list[Any]:
  """Values as bytes: Arrow's own conversion to text would stop at bad UTF-8. Of another type as they are."""
  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
  with contextlib.suppress(pa.ArrowNotImplementedError):
    column = column.cast(pa.large_list(pa.large_binary()) if is_list else pa.large_binary())
  return column.to_pylist()


def _text_document(
  value: Any, where: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """The document of a text or a list of sentences; without sentences there is none, and it is counted.

  Args:
    value: strings, or bytes of UTF-8.
    where: the record, for messages.
    options, stats: of the reader.
  """
  items = [item for item in (value if isinstance(value, list) else [value]) if item is not None]
  for item in items:
    if not isinstance(item, (str, bytes)):
      raise UserError(
        f"The column {options.text_field!r} must hold text, or lists of sentences. Received: "
        f"{type(item).__name__} in {where}. Name another with --text_field."
      )
  # JSON can escape half a surrogate pair, which is no character of UTF-8.
  texts = [
    decode(item.encode(errors="surrogatepass") if isinstance(item, str) else item, stats) for item in items
  ]
  if isinstance(value, list):
    sentences = [" ".join(text.split()) for text in texts if text.strip()]
  else:
    lines = itertools.chain.from_iterable(text.splitlines() for text in texts)
    sentences = [sentence for line in lines for sentence in split_sentences(line, language=options.language)]
  stats.skipped_records += not sentences
  builder = DocumentBuilder(options, stats)
  yield from builder.add(sentences)
  yield from builder.end()


def _no_field(name: str, where: str, received: object) -> str:
  return f"Records must have the column {name!r}. Received: {received} in {where}. Name it with --text_field."
