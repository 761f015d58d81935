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
class _Noted(Settings):
  """Settings that say in their file of which tokenizer they are."""

  FORMAT: ClassVar[str]

  def to_json(self) -> str:
    return json.dumps({"format": self.FORMAT, **self.to_dict()}, indent=2) + "\n"

  @classmethod
  def from_json(cls, path: str) -> Self:
    """Reads the file that `to_json` wrote; strict about names."""
    values = _read_json(path)
    if values.pop("format", None) != cls.FORMAT:
      raise UserError(
        f'{CONFIG_FILE} beside {MODEL_FILE} must hold "format": "{cls.FORMAT}". Received: another in {path}. '
        f"Remove it, or rename the model file to {HUGGING_FACE_MODEL} if both are theirs."
      )
    return cls.from_dict(values, source=path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig(_Noted):
  """What text goes through before and after SentencePiece."""

  FORMAT: ClassVar[str] = "albert_tf"
  do_lower_case: bool = setting(True, help="Lower-case the text; true for every released English model.")
  keep_accents: bool = setting(
    False,
    help="Leave characters as they are, where else NFKD takes them apart and combining marks are dropped.",
  )
  remove_space: bool = setting(True, help="Collapse white space.")
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
class WordPieceConfig(_Noted):
  """What text goes through before WordPiece."""

  FORMAT: ClassVar[str] = "albert_tf_wordpiece"
  do_lower_case: bool = setting(True, help="Lower-case the text.")
  keep_accents: bool = setting(
    False, help="Keep combining marks. BERT's uncased vocabularies are without, its cased ones with them."
  )


def _read_json(path: str) -> dict[str, Any]:
  """The object in a file; empty where there is none."""
  return files.read_json(path) if files.exists(path) else {}


def model_in(directory: str) -> str:
  """The SentencePiece model of a directory, by its name there; empty if there is none."""
  return _first_there(directory, (MODEL_FILE, HUGGING_FACE_MODEL, RELEASED_MODEL))


def vocabulary_in(directory: str) -> str:
  """The same for a WordPiece vocabulary."""
  return _first_there(directory, (VOCABULARY_FILE, RELEASED_VOCABULARY))


def _first_there(directory: str, names: tuple[str, ...]) -> str:
  candidates = [os.path.join(folder, name) for folder in ("", "assets") for name in names]
  return next((name for name in candidates if files.exists(os.path.join(directory, name))), "")


def find_model(path: str) -> tuple[str, TokenizerConfig]:
  """Finds the SentencePiece model in a run directory, a released one or Hugging Face's, with its settings.

  Args:
    path: a directory, or a SentencePiece model file itself (settings from beside it, where there are any).

  Returns:
    (path of the model file, settings).

  Raises:
    UserError: there is no model, or its settings cannot be read.
  """
  if path.endswith(".model") or (files.exists(path) and not files.isdir(path)):
    directory, name = os.path.split(path)
  else:
    directory = path
    name = model_in(path)
    if not name and files.exists(os.path.join(path, VOCABULARY_FILE)):
      raise UserError(
        f"A SentencePiece model was expected in {path}. Received: {VOCABULARY_FILE}. "
        f"{VOCABULARY_FILE} is a WordPiece vocabulary: use WordPieceTokenizer(vocab_file=…)."
      )
    if not name:
      raise UserError(
        f"A tokenizer directory must hold one of {MODEL_FILE}, {HUGGING_FACE_MODEL}, {RELEASED_MODEL}. "
        f"Received: {path}, which has none. Name a run directory, or the SentencePiece model file itself."
      )
  model_path = os.path.join(directory, name)
  if os.path.basename(name) == HUGGING_FACE_MODEL:
    return model_path, _hugging_face_config(os.path.join(directory, _HUGGING_FACE_CONFIG))
  beside = [
    model_path.removesuffix(".model") + ".json",
    os.path.join(os.path.dirname(model_path), CONFIG_FILE),
  ]
  config_path = next((path for path in beside if files.exists(path)), None)
  return model_path, TokenizerConfig.from_json(config_path) if config_path else TokenizerConfig()


def find_vocabulary(path: str) -> tuple[str, WordPieceConfig]:
  """Finds a WordPiece vocabulary, a .txt file or a directory's, with the settings noted beside it."""
  vocabulary = path if path.endswith(".txt") else os.path.join(path, vocabulary_in(path) or VOCABULARY_FILE)
  ours = os.path.join(os.path.dirname(vocabulary), CONFIG_FILE)
  if _read_json(ours).get("format") == WordPieceConfig.FORMAT:  # Hugging Face has a file of that name, too.
    return vocabulary, WordPieceConfig.from_json(ours)
  theirs = _read_json(os.path.join(os.path.dirname(vocabulary), _HUGGING_FACE_CONFIG))
  lower = theirs.get("do_lower_case", True)
  strip = theirs.get("strip_accents")  # None: as BERT's code, together with case.
  return vocabulary, WordPieceConfig(
    do_lower_case=lower, keep_accents=not lower if strip is None else not strip
  )


def _hugging_face_config(path: str) -> TokenizerConfig:
  """Their tokenizer's settings, with their defaults; theirs always applies the quote rule."""
  names = {field.name for field in dataclasses.fields(TokenizerConfig)}
  values = {name: value for name, value in _read_json(path).items() if name in names}
  return TokenizerConfig(**{"normalize_quotes": True, **values})
