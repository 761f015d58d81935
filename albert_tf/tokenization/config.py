"""A tokenizer's settings, kept beside its vocabulary, and where both are found."""

import dataclasses
import json
import os
from typing import Any, ClassVar, TypeVar

from albert_tf import files
from albert_tf.errors import UserError

MODEL_FILE = "spm.model"
CONFIG_FILE = "tokenizer.json"
HUGGING_FACE_MODEL = "spiece.model"
_HUGGING_FACE_CONFIG = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
RELEASED_MODEL = "30k-clean.model"
RELEASED_VOCABULARY = "vocab_chinese.txt"
DIGIT_COMMA_RULES = ("strip", "nostrip")


class _Noted:
  """Settings that say in their file of which tokenizer they are."""

  FORMAT: ClassVar[str]

  def to_json(self) -> str:
    return json.dumps({"format": self.FORMAT, **dataclasses.asdict(self)}, indent=2) + "\n"  # type: ignore[call-overload]


_Config = TypeVar("_Config", "TokenizerConfig", "WordPieceConfig")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig(_Noted):
  """What text goes through before and after SentencePiece.

  Args:
    do_lower_case: lower-case the text; true for every released English model.
    keep_accents: leave characters as they are, where else NFKD takes them apart and combining marks are dropped.
    remove_space: collapse white space.
    normalize_quotes: `` and '' become a double quote (Hugging Face does it, the original does not).
    digit_comma: "12," becomes "12" and ","; `strip` drops the space mark that SentencePiece puts before the
      re-encoded number (as intended, and as Hugging Face does), `nostrip` keeps it (as the original did).
  """

  FORMAT: ClassVar[str] = "albert_tf"
  do_lower_case: bool = True
  keep_accents: bool = False
  remove_space: bool = True
  normalize_quotes: bool = False
  digit_comma: str = "strip"

  def __post_init__(self) -> None:
    if self.digit_comma not in DIGIT_COMMA_RULES:
      raise UserError(
        f"digit_comma must be one of {', '.join(DIGIT_COMMA_RULES)}. Received: {self.digit_comma!r}."
      )

  @property
  def normalization(self) -> dict[str, Any]:
    """The choices of `normalize_text`."""
    return {name: value for name, value in dataclasses.asdict(self).items() if name != "digit_comma"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordPieceConfig(_Noted):
  """What text goes through before WordPiece.

  Args:
    do_lower_case: lower-case the text.
    keep_accents: keep combining marks. BERT's uncased vocabularies are without, its cased ones with them.
  """

  FORMAT: ClassVar[str] = "albert_tf_wordpiece"
  do_lower_case: bool = True
  keep_accents: bool = False


def config_from_json(text: str, kind: type[_Config], *, path: str) -> _Config:
  """Reads what `to_json` wrote; strict about keys."""
  try:
    values: dict[str, Any] = json.loads(text)
    found = values.pop("format", None)
  except (ValueError, AttributeError) as error:
    raise UserError(f"The tokenizer's settings must be a JSON object. Received: {path} ({error}).") from error
  if found != kind.FORMAT:
    raise UserError(
      f'{CONFIG_FILE} beside {MODEL_FILE} must hold "format": "{kind.FORMAT}". Received: {found!r} in {path}. '
      f"Remove it, or rename the model file to {HUGGING_FACE_MODEL} if both are theirs."
    )
  known = {field.name for field in dataclasses.fields(kind)}
  unknown = sorted(set(values) - known)
  if unknown:
    raise UserError(
      f"The tokenizer's settings are {sorted(known)}. Received: {unknown} in {path}. Remove or rename them."
    )
  return kind(**values)


def model_in(directory: str) -> str:
  """The SentencePiece model of a directory, by its name there; empty if there is none."""
  models = (MODEL_FILE, HUGGING_FACE_MODEL, RELEASED_MODEL)
  candidates = [os.path.join(folder, model) for folder in ("", "assets") for model in models]
  return next((name for name in candidates if files.exists(os.path.join(directory, name))), "")


def vocabulary_in(directory: str) -> str:
  """The same for a WordPiece vocabulary."""
  names = (VOCABULARY_FILE, RELEASED_VOCABULARY)
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
  if config_path is None:
    return model_path, TokenizerConfig()
  with files.open_binary(config_path) as stream:
    return model_path, config_from_json(stream.read().decode("utf-8"), TokenizerConfig, path=config_path)


def find_vocabulary(path: str) -> tuple[str, WordPieceConfig]:
  """Finds a WordPiece vocabulary, a .txt file or a directory's, with the settings noted beside it."""
  vocabulary = path if path.endswith(".txt") else os.path.join(path, vocabulary_in(path) or VOCABULARY_FILE)
  directory = os.path.dirname(vocabulary)
  ours, theirs = (_json_beside(directory, name) for name in (CONFIG_FILE, _HUGGING_FACE_CONFIG))
  if ours.get("format") == WordPieceConfig.FORMAT:  # Hugging Face has a file of that name, too.
    text = json.dumps(ours)
    return vocabulary, config_from_json(text, WordPieceConfig, path=os.path.join(directory, CONFIG_FILE))
  lower = theirs.get("do_lower_case", True)
  strip = theirs.get("strip_accents")  # None: as BERT's code, together with case.
  return vocabulary, WordPieceConfig(
    do_lower_case=lower, keep_accents=not lower if strip is None else not strip
  )


def _json_beside(directory: str, name: str) -> dict[str, Any]:
  path = os.path.join(directory, name)
  if not files.exists(path):
    return {}
  try:
    return dict(json.loads(files.read_bytes(path)))
  except (ValueError, TypeError) as error:
    raise UserError(f"The tokenizer's settings must be a JSON object. Received: {path} ({error}).") from error


def _hugging_face_config(path: str) -> TokenizerConfig:
  """Their tokenizer's settings, with their defaults; theirs always applies the quote rule."""
  values: dict[str, Any] = {}
  if files.exists(path):
    with files.open_binary(path) as stream:
      values = json.loads(stream.read())
  return TokenizerConfig(
    do_lower_case=values.get("do_lower_case", True),
    keep_accents=values.get("keep_accents", False),
    remove_space=values.get("remove_space", True),
    normalize_quotes=values.get("normalize_quotes", True),
    digit_comma=values.get("digit_comma", "strip"),
  )
