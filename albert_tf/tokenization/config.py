"""Settings of a tokenizer, stored next to its vocabulary; finding both.

`find_tokenizer` is the only way from a path to a vocabulary, for loading and for conversion.
"""

import os
from typing import Any, Literal

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting
from albert_tf.tokenization.saved_tokenizer import negated, read_saved_tokenizer

# Files of this project.
MODEL_FILE = "spm.model"
CONFIG_FILE = "tokenizer.json"
VOCABULARY_FILE = "vocab.txt"
# Those of Hugging Face, whose tokenizer.json is another one, and of the released models.
HUGGING_FACE_MODEL = "spiece.model"
_HUGGING_FACE_CONFIG = "tokenizer_config.json"
RELEASED_MODEL = "30k-clean.model"
RELEASED_VOCABULARY = "vocab_chinese.txt"
_SENTENCEPIECE_FILES = (MODEL_FILE, HUGGING_FACE_MODEL, RELEASED_MODEL)
_WORDPIECE_FILES = (VOCABULARY_FILE, RELEASED_VOCABULARY)


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
    '"12," becomes "12" and ",". SentencePiece puts a space mark before the number: strip drops it, as '
    "Hugging Face does; nostrip keeps it, as the original does.",
  )

  @property
  def normalization(self) -> dict[str, Any]:
    """The arguments of `normalize_text`."""
    return {
      "do_lower_case": self.do_lower_case,
      "keep_accents": self.keep_accents,
      "normalize_quotes": self.normalize_quotes,
    }


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
    return negated(self.keep_accents)


def find_vocabulary(path: files.Path) -> str:
  """The vocabulary file `path`, or that in the directory `path`; "" for none.

  SentencePiece comes before WordPiece, and both before a `tokenizer.json` of Hugging Face.
  """
  path = files.text_of(path)
  if files.exists(path) and not files.isdir(path):
    return path
  for names in (_SENTENCEPIECE_FILES, _WORDPIECE_FILES):
    for folder in ("", "assets"):  # A SavedModel has the vocabulary among its assets.
      for name in names:
        file = os.path.join(path, folder, name)
        if files.exists(file):
          return file
  saved = os.path.join(path, CONFIG_FILE)
  if "model" in json_files.find(saved):  # Else these are this project's settings.
    return saved
  return ""


def vocabulary_bytes(file: str) -> bytes:
  """The content of a vocabulary's file; of a `tokenizer.json`, of the file that it was made from."""
  if os.path.basename(file) == CONFIG_FILE:
    vocabulary, _ = read_saved_tokenizer(file)
    return vocabulary
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
      f"A vocabulary must be a readable file, or a directory with {MODEL_FILE}, "
      f"{HUGGING_FACE_MODEL}, {RELEASED_MODEL}, {VOCABULARY_FILE} or Hugging Face's {CONFIG_FILE}. "
      f"Received: {path}."
    )
  if os.path.basename(file) == CONFIG_FILE:
    _, settings = read_saved_tokenizer(file)
    if settings["format"] == WordPieceConfig.format:
      return file, WordPieceConfig.from_dict(settings, source=file)
    return file, TokenizerConfig.from_dict(settings, source=file)
  if file.endswith(".txt"):
    return file, _find_wordpiece_config(file)
  return file, _find_sentencepiece_config(file)


def _find_wordpiece_config(file: str) -> WordPieceConfig:
  """The settings beside a vocabulary, ours or Hugging Face's; else the defaults."""
  folder = os.path.dirname(file)
  path = os.path.join(folder, CONFIG_FILE)
  values = json_files.find(path)
  if values.get("format") == WordPieceConfig.format:  # Hugging Face's file has the same name.
    return WordPieceConfig.from_dict(values, source=path)
  path = os.path.join(folder, _HUGGING_FACE_CONFIG)
  values = json_files.find(path, do_lower_case=bool | None, strip_accents=bool | None)
  return WordPieceConfig(
    do_lower_case=values.get("do_lower_case") is not False,
    keep_accents=negated(values.get("strip_accents")),
  )


def _find_sentencepiece_config(file: str) -> TokenizerConfig:
  """The settings beside a model, ours or Hugging Face's; else the defaults."""
  folder = os.path.dirname(file)
  if os.path.basename(file) == HUGGING_FACE_MODEL:
    path = os.path.join(folder, _HUGGING_FACE_CONFIG)
    # Theirs always applies the quote rule. It has many settings that are not the vocabulary's.
    values = {"format": TokenizerConfig.format, "normalize_quotes": True}
    for name, value in json_files.find(path).items():
      if name in TokenizerConfig.__dataclass_fields__:
        values[name] = value
    return TokenizerConfig.from_dict(values, source=path)

  path = file.removesuffix(".model") + ".json"  # A new vocabulary's settings have its name.
  if not files.exists(path):
    path = os.path.join(folder, CONFIG_FILE)
  if not files.exists(path):
    return TokenizerConfig()
  return TokenizerConfig.from_dict(json_files.read(path), source=path)
