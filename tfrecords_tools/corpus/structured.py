"""JSON lines and Parquet: a column holds each document's text."""

from collections.abc import Iterable, Iterator
import itertools
import json
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError, optional_package
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
  for line in read_text_lines(chunks, path, options=options, stats=stats, limit=limit):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except ValueError as error:
      if options.on_bad_text == "error":
        raise UserError(
          f"A file of --input_format=jsonl must hold one JSON object a line, of at most {limit >> 20} MiB. "
          f"Received: {line[:60]!r} in {path} ({error}). Mend the file, or pass --on_bad_text=skip to leave "
          "such lines out."
        ) from error
      stats.bad_text_skipped += 1
      continue
    if not isinstance(record, dict) or options.text_field not in record:
      received = sorted(record) if isinstance(record, dict) else type(record).__name__
      raise UserError(_no_field(options.text_field, path, received))
    yield from text_document(record[options.text_field], path, options=options, stats=stats)


def read_parquet(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`parquet`: one row a document; the column `text_field` is a string, or a list of sentences."""
  pa, pq = (  # Deferred: a second to import, and most corpora are text.
    optional_package(name, extra="data", purpose=f"{path} is read as Parquet, which needs")
    for name in ("pyarrow", "pyarrow.parquet")
  )
  if not head.startswith(PARQUET_MAGIC):
    raise UserError(
      f"A file of --input_format=parquet must be one. Received: {path}. Try --input_format=auto."
    )
  with files.open_binary(path) as raw:
    try:
      table = pq.ParquetFile(raw, pre_buffer=False)
    except pa.ArrowInvalid as error:
      raise UserError(f"A Parquet file must be whole. Received: {path} ({error}). Copy it again.") from error
    if options.text_field not in table.schema_arrow.names:
      raise UserError(_no_field(options.text_field, path, sorted(table.schema_arrow.names)))
    rows = itertools.count()
    for batch in table.iter_batches(
      batch_size=_PARQUET_ROWS, columns=[options.text_field], use_threads=False
    ):
      for value in _as_bytes(batch.column(0), pa):
        items = value if isinstance(value, list) else [value]
        stats.bytes_read += sum(map(len, filter(None, items)))
        where = f"row {next(rows)}"
        decoded = [
          item and decode(item, path, where, options=options, stats=stats, is_file=False) for item in items
        ]
        yield from text_document(
          decoded if isinstance(value, list) else decoded[0], path, options=options, stats=stats
        )


def _as_bytes(column: Any, pa: Any) -> list[Any]:
  """Values as bytes: Arrow's own conversion to text would stop at bad UTF-8."""
  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
    return column.cast(pa.large_list(pa.large_binary())).to_pylist()
  return column.cast(pa.large_binary()).to_pylist()


def text_document(
  value: Any, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """The document of a text, or of a list of sentences; nothing, but counted, where there is no sentence."""
  builder = DocumentBuilder(options, stats)
  if isinstance(value, list):
    items = (_encodable(item, path, options=options, stats=stats) for item in value if isinstance(item, str))
    sentences = [" ".join(item.split()) for item in items if item.strip()]
  elif isinstance(value, str):
    text = _encodable(value, path, options=options, stats=stats)
    sentences = [s for line in text.splitlines() for s in split_sentences(line, language=options.language)]
  elif value is None:
    sentences = []
  else:
    raise UserError(
      f"The column {options.text_field!r} must hold text, or lists of sentences. Received: "
      f"{type(value).__name__} in {path}. Name another with --text_field."
    )
  stats.skipped_records += not sentences
  yield from builder.add(sentences)
  yield from builder.end()


def _encodable(text: str, path: str, *, options: CorpusOptions, stats: CorpusStats) -> str:
  """The text; of half a surrogate pair, which JSON can escape and no UTF-8 has, what `on_bad_text` says."""
  try:
    text.encode()
  except UnicodeEncodeError:
    where = "half of a surrogate pair, escaped as \\ud800 to \\udfff in a value"
    data = text.encode(errors="surrogatepass")
    return decode(data, path, where, options=options, stats=stats, is_file=False) or ""
  return text


def _no_field(name: str, path: str, received: object) -> str:
  return f"Records must have the column {name!r}. Received: {received} in {path}. Name it with --text_field."
