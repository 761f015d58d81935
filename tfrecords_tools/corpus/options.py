"""What the readers of a corpus share: options, counts, and the open file."""

import collections
from collections.abc import Iterable
import dataclasses
from typing import Any

from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

# ISO 639 codes of the languages that the sentence splitter has rules for. It would take any other
# for English, without a word. Chinese is one of these: the English rules know its marks.
LANGUAGES = tuple(
  "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk "
  "zh".split()
)
# What a reader yields: sentences that go on a document, or None where it ends.
Part = list[str] | None


class CorpusOptions(Settings):
  """How files become documents of sentences.

  Args:
    max_line_bytes: a longer line is cut, at white space where there is some, so that memory is
      bounded.
    max_document_bytes: a longer document is cut into several between two sentences, for the same
      reason.
    max_record_bytes: a longer record of `jsonl` is an error.
    max_sentence_chars: in `lines`, a longer line cannot be one sentence; it is split into sentences.
  """

  input_format: str = setting(
    "auto",
    "Format of the text. auto: by the end of each file's name, and of plain text by its blank "
    "lines.",
    choices=("auto", "lines", "paragraphs", "mediawiki", "jsonl", "parquet"),
  )
  language: str = setting(
    "en",
    "Language of the sentence splitter, as ISO 639 code (all formats but lines). "
    f"One of: {', '.join(LANGUAGES)}. For any other: en, or a similar one. It is that of all files "
    "of the command.",
  )
  text_field: str = setting(
    "text",
    "jsonl, parquet: field with the text, a string or a list of sentences. Null and empty texts are "
    "skipped and counted. A record without the field, a broken line and one over 64 MiB end the "
    "command.",
  )
  max_line_bytes: int = 1 << 20
  max_document_bytes: int = 8 << 20
  max_record_bytes: int = 64 << 20
  max_sentence_chars: int = 10_000

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.language not in LANGUAGES:
      raise UserError(
        f"language must be one that the sentence splitter has rules for: {', '.join(LANGUAGES)}. "
        f"Received: {self.language!r}. Give such a code, without a country. For another language "
        "pass --language=en, whose rules know the marks of many scripts, or a similar language."
      )


@dataclasses.dataclass
class CorpusStats:
  """Counts over everything read so far; `a + b` of what two workers read."""

  files: int = 0
  empty_files: int = 0
  bytes_read: int = 0  # After decompression.
  documents: int = 0
  sentences: int = 0
  bad_text_replaced: int = 0  # Lines or records with U+FFFD put in.
  # Cuts of lines longer than max_line_bytes or, in `lines`, max_sentence_chars.
  long_lines: int = 0
  long_documents: int = 0  # Documents cut because of max_document_bytes.
  skipped_records: int = 0  # Redirects, non-article pages, records without text.
  # Files of each.
  formats: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

  def __add__(self, other: "CorpusStats") -> "CorpusStats":
    names = [field.name for field in dataclasses.fields(self)]
    return CorpusStats(**{name: getattr(self, name) + getattr(other, name) for name in names})

  def to_dict(self) -> dict[str, Any]:
    # In a fixed order, so that the manifest does not depend on which worker was first.
    return dataclasses.asdict(self) | {"formats": dict(sorted(self.formats.items()))}

  @classmethod
  def from_dict(cls, fields: dict[str, Any]) -> "CorpusStats":
    return cls(**fields | {"formats": collections.Counter(fields["formats"])})


@dataclasses.dataclass(frozen=True)
class CorpusFile:
  """An open file, as the reader of its format gets it.

  Args:
    path: of the file.
    chunks: all its bytes, decompressed.
    options: how it is read.
    stats: counts what is read.
  """

  path: str
  chunks: Iterable[bytes]
  options: CorpusOptions
  stats: CorpusStats
