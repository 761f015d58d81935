"""Settings of a tokenizer, stored next to its vocabulary; finding both."""

import os
from typing import Any, Literal

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting
from albert_tf.tokenization.saved_tokenizer import read_saved_tokenizer

MODEL_FILE = "spm.model"
CONFIG_FILE = "tokenizer.json"
HUGGING_FACE_MODEL = "spiece.model"
_HUGGING_FACE_CONFIG = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
RELEASED_MODEL = "30k-clean.model"
RELEASED_VOCABULARY = "vocab_chinese.txt"


class TokenizerConfig(Settings):
  """Text rules before and after SentencePiece."""

  format: Literal["albert_tf"] = "albert_tf"  # Hugging Face's file has the same name.
  do_lower_case: bool = setting(True, "Lower-case the text; true for every released English model.")
  keep_accents: bool = setting(False, "Do not apply NFKD, and do not drop combining marks.")
  normalize_quotes: bool = setting(
    False, "`` and '' become a double quote (Hugging Face does it, the original does not)."
  )
  digit_comma: Literal["strip", "nostrip"] = setting(
    "strip",
    '"12," becomes "12" and ",". SentencePiece puts a space mark before the number: strip drops it, as Hugging '
    "Face does; nostrip keeps it, as the original does.",
  )

  @property
  def normalization(self) -> dict[str, Any]:
    """The arguments of `normalize_text`."""
    return {name: value for name, value in self.to_dict().items() if name not in ("format", "digit_comma")}


class WordPieceConfig(Settings):
  """Text rules before WordPiece."""

  format: Literal["albert_tf_wordpiece"] = "albert_tf_wordpiece"
  do_lower_case: bool = setting(True, "Lower-case the text.")
  keep_accents: bool | None = setting(
    None, "Keep combining marks. Default, as in BERT: unless the text is lower-cased."
  )

  @property
  def strip_accents(self) -> bool | None:
    """The setting under BERT's name."""
    return None if self.keep_accents is None else not self.keep_accents


def find_vocabulary(path: files.Path) -> str:
  """The vocabulary file `path`, or that in the directory `path`; "" for none.

  SentencePiece comes before WordPiece, and both before a `tokenizer.json` of Hugging Face.
  """
  path = files.text_of(path)
  if files.exists(path) and not files.isdir(path):
    return path
  kinds = ((MODEL_FILE, HUGGING_FACE_MODEL, RELEASED_MODEL), (VOCABULARY_FILE, RELEASED_VOCABULARY))
  candidates = (
    os.path.join(path, folder, name) for names in kinds for folder in ("", "assets") for name in names
  )
  file = next(filter(files.exists, candidates), "")
  saved = os.path.join(path, CONFIG_FILE)
  if not file and "model" in _read_json(saved):  # Else these are this project's settings.
    return saved
  return file


def vocabulary_bytes(file: str) -> bytes:
  """The content of a vocabulary's file; of a `tokenizer.json`, what stood in the file that it was made from."""
  if os.path.basename(file) == CONFIG_FILE:
    return read_saved_tokenizer(file)[0]
  return files.read_bytes(file)


def find_tokenizer(path: files.Path) -> tuple[str, TokenizerConfig | WordPieceConfig]:
  """Finds the vocabulary in a run, release or Hugging Face directory, with its settings.

  Args:
    path: a directory, or a SentencePiece model or a WordPiece vocabulary (.txt) itself.

  Returns:
    (path of the vocabulary's file, its settings or the defaults).

  Raises:
    UserError: there is no vocabulary, or its settings cannot be read.
  """
  file = find_vocabulary(path)
  if not file:
    raise UserError(
      f"A vocabulary must be a readable file, or a directory with {MODEL_FILE}, {HUGGING_FACE_MODEL}, "
      f"{RELEASED_MODEL}, {VOCABULARY_FILE} or Hugging Face's {CONFIG_FILE}. Received: {path}."
    )
  if os.path.basename(file) == CONFIG_FILE:
    _, settings = read_saved_tokenizer(file)
    kind = WordPieceConfig if settings["format"] == WordPieceConfig.format else TokenizerConfig
    return file, kind.from_dict(settings, source=file)
  folder = os.path.dirname(file)
  ours, theirs = (os.path.join(folder, name) for name in (CONFIG_FILE, _HUGGING_FACE_CONFIG))
  if file.endswith(".txt"):
    own = _read_json(ours)
    if own.get("format") == WordPieceConfig.format:
      return file, WordPieceConfig.from_dict(own, source=ours)
    found = _read_json(theirs, do_lower_case=bool | None, strip_accents=bool | None)
    strip = found.get("strip_accents")
    keep = None if strip is None else not strip
    return file, WordPieceConfig(do_lower_case=found.get("do_lower_case") is not False, keep_accents=keep)
  if os.path.basename(file) == HUGGING_FACE_MODEL:  # Theirs always applies the quote rule.
    known = {n: v for n, v in _read_json(theirs).items() if n in TokenizerConfig.__dataclass_fields__}
    values = {"format": TokenizerConfig.format, "normalize_quotes": True, **known}
    return file, TokenizerConfig.from_dict(values, source=theirs)
  named = file.removesuffix(".model") + ".json"  # A new vocabulary's settings have its name.
  path = named if files.exists(named) else ours
  if not files.exists(path):
    return file, TokenizerConfig()
  return file, TokenizerConfig.from_dict(files.read_json(path), source=path)


def _read_json(path: str, **types: Any) -> dict[str, Any]:
  """The object in a file; empty where there is none."""
  return files.read_json(path, **types) if files.exists(path) else {}
