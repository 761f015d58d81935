"""A tokenizer's settings, kept beside its vocabulary, and where both are found."""

import dataclasses
import json
import os
from typing import Any, ClassVar, Literal, Self

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

MODEL_FILE = "spm.model"
CONFIG_FILE = "tokenizer.json"
HUGGING_FACE_MODEL = "spiece.model"
_HUGGING_FACE_CONFIG = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
RELEASED_MODEL = "30k-clean.model"
RELEASED_VOCABULARY = "vocab_chinese.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StoredSettings(Settings):
  """Settings that say in their file of which tokenizer they are."""

  FORMAT: ClassVar[str]

  def to_json(self) -> str:
    return json.dumps({"format": self.FORMAT, **self.to_dict()}, indent=2) + "\n"

  @classmethod
  def from_json(cls, values: dict[str, Any], *, source: str) -> Self:
    """The settings of what `to_json` wrote; strict about names."""
    if values.get("format") != cls.FORMAT:
      raise UserError(
        f'{CONFIG_FILE} beside {MODEL_FILE} must hold "format": "{cls.FORMAT}". Received: another in {source}. '
        f"Remove it, or rename the model file to {HUGGING_FACE_MODEL} if both are theirs."
      )
    return cls.from_dict({name: value for name, value in values.items() if name != "format"}, source=source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig(_StoredSettings):
  """What text goes through before and after SentencePiece."""

  FORMAT: ClassVar[str] = "albert_tf"
  do_lower_case: bool = setting(True, help="Lower-case the text; true for every released English model.")
  keep_accents: bool = setting(
    False,
    help="Leave characters as they are, where else NFKD takes them apart and combining marks are dropped.",
  )
  normalize_quotes: bool = setting(
    False, help="`` and '' become a double quote (Hugging Face does it, the original does not)."
  )
  digit_comma: Literal["strip", "nostrip"] = setting(
    "strip",
    help='"12," becomes "12" and ",": strip drops the space mark that SentencePiece puts before the re-encoded '
    "number (as intended, and as Hugging Face does), nostrip keeps it (as the original did).",
  )

  @property
  def normalization(self) -> dict[str, Any]:
    """The choices of `normalize_text`."""
    return {name: value for name, value in self.to_dict().items() if name != "digit_comma"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordPieceConfig(_StoredSettings):
  """What text goes through before WordPiece."""

  FORMAT: ClassVar[str] = "albert_tf_wordpiece"
  do_lower_case: bool = setting(True, help="Lower-case the text.")
  keep_accents: bool = setting(
    False, help="Keep combining marks. BERT's uncased vocabularies are without, its cased ones with them."
  )


def _in_directory(path: str) -> str:
  """The vocabulary's file of a directory; a SentencePiece model comes first. Empty if there is none."""
  for names in ((MODEL_FILE, HUGGING_FACE_MODEL, RELEASED_MODEL), (VOCABULARY_FILE, RELEASED_VOCABULARY)):
    for folder in ("", "assets"):
      for file in (os.path.join(path, folder, name) for name in names):
        if files.exists(file):
          return file
  return ""


def _is_file(path: str) -> bool:
  return path.endswith((".model", ".txt")) or (files.exists(path) and not files.isdir(path))


def holds_tokenizer(path: str) -> bool:
  """Whether a path is a vocabulary's file, or a directory with one."""
  return _is_file(path) or bool(_in_directory(path))


def find_tokenizer(path: str) -> tuple[str, TokenizerConfig | WordPieceConfig]:
  """Finds the vocabulary in a run directory, a released one or Hugging Face's, with its settings.

  Args:
    path: a directory, or a SentencePiece model or a WordPiece vocabulary (.txt) itself.

  Returns:
    (path of the vocabulary's file, settings from beside it, where there are any).

  Raises:
    UserError: there is no vocabulary, or its settings cannot be read.
  """
  file = path if _is_file(path) else _in_directory(path)
  if not file:
    raise UserError(
      f"A tokenizer directory must hold one of {MODEL_FILE}, {HUGGING_FACE_MODEL}, {RELEASED_MODEL}, "
      f"{VOCABULARY_FILE}. Received: {path}, which has none. Name a run directory, or the file itself."
    )
  folder = os.path.dirname(file)
  ours, theirs = (_read_json(os.path.join(folder, name)) for name in (CONFIG_FILE, _HUGGING_FACE_CONFIG))
  if file.endswith(".txt"):
    if ours.get("format") == WordPieceConfig.FORMAT:  # Hugging Face has a file of that name, too.
      return file, WordPieceConfig.from_json(ours, source=folder)
    lower = theirs.get("do_lower_case", True)
    strip = theirs.get("strip_accents")  # None: as BERT's code, together with case.
    return file, WordPieceConfig(do_lower_case=lower, keep_accents=not lower if strip is None else not strip)
  if os.path.basename(file) == HUGGING_FACE_MODEL:  # Theirs always applies the quote rule.
    known = {name: value for name, value in theirs.items() if name in TokenizerConfig.__dataclass_fields__}
    return file, TokenizerConfig(**{"normalize_quotes": True, **known})
  own = _read_json(file.removesuffix(".model") + ".json") or ours  # Beside a new vocabulary, under its name.
  return file, TokenizerConfig.from_json(own, source=folder) if own else TokenizerConfig()


def _read_json(path: str) -> dict[str, Any]:
  """The object in a file; empty where there is none."""
  return files.read_json(path) if files.exists(path) else {}
