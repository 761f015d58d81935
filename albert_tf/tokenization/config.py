"""The tokenizer's settings, kept beside the SentencePiece model, and where both are found."""

import dataclasses
import json
import os
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

MODEL_FILE = "spm.model"
CONFIG_FILE = "tokenizer.json"
HUGGING_FACE_MODEL = "spiece.model"
_HUGGING_FACE_CONFIG = "tokenizer_config.json"
_WORDPIECE_VOCABULARY = "vocab.txt"
RELEASED_MODEL = "30k-clean.model"
_FORMAT = "albert_tf"
DIGIT_COMMA_RULES = ("strip", "nostrip")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
  """What text goes through before and after SentencePiece.

  Args:
    do_lower_case: lower-case the text; true for every released English model.
    remove_space: collapse white space.
    normalize_quotes: `` and '' become a double quote (Hugging Face does it, the original does not).
    digit_comma: "12," becomes "12" and ","; `strip` drops the space mark that SentencePiece puts before the
      re-encoded number (as intended, and as Hugging Face does), `nostrip` keeps it (as the original did).
  """

  do_lower_case: bool = True
  remove_space: bool = True
  normalize_quotes: bool = False
  digit_comma: str = "strip"

  def __post_init__(self) -> None:
    if self.digit_comma not in DIGIT_COMMA_RULES:
      raise UserError(
        f"digit_comma must be one of {', '.join(DIGIT_COMMA_RULES)}. Received: {self.digit_comma!r}."
      )

  def to_json(self) -> str:
    return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=2) + "\n"


def config_from_json(text: str, *, path: str) -> TokenizerConfig:
  """Reads what `TokenizerConfig.to_json` wrote; strict about keys."""
  try:
    values: dict[str, Any] = json.loads(text)
    kind = values.pop("format", None)
  except (ValueError, AttributeError) as error:
    raise UserError(f"The tokenizer's settings must be a JSON object. Received: {path} ({error}).") from error
  if kind != _FORMAT:
    raise UserError(
      f'{CONFIG_FILE} beside {MODEL_FILE} must hold "format": "{_FORMAT}". Received: {kind!r} in {path}. '
      f"Remove it, or rename the model file to {HUGGING_FACE_MODEL} if both are theirs."
    )
  known = {field.name for field in dataclasses.fields(TokenizerConfig)}
  unknown = sorted(set(values) - known)
  if unknown:
    raise UserError(
      f"The tokenizer's settings are {sorted(known)}. Received: {unknown} in {path}. Remove or rename them."
    )
  return TokenizerConfig(**values)


def model_in(directory: str) -> str:
  """The SentencePiece model of a directory, by its name there; empty if there is none."""
  models = (MODEL_FILE, HUGGING_FACE_MODEL, RELEASED_MODEL)
  candidates = [os.path.join(folder, model) for folder in ("", "assets") for model in models]
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
  if path.endswith(".model"):
    directory, name = os.path.split(path)
  else:
    directory = path
    name = model_in(path)
    if not name and files.exists(os.path.join(path, _WORDPIECE_VOCABULARY)):
      raise UserError(
        f"A SentencePiece model was expected in {path}. Received: {_WORDPIECE_VOCABULARY}. "
        f"{_WORDPIECE_VOCABULARY} is a WordPiece vocabulary: use WordPieceTokenizer(vocab_file=…)."
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
    return model_path, config_from_json(stream.read().decode("utf-8"), path=config_path)


def _hugging_face_config(path: str) -> TokenizerConfig:
  """Their tokenizer's settings, with their defaults; theirs always applies the quote rule."""
  values: dict[str, Any] = {}
  if files.exists(path):
    with files.open_binary(path) as stream:
      values = json.loads(stream.read())
  if values.get("keep_accents"):
    raise UserError(f"keep_accents=true is not supported: no ALBERT keeps accents. Received: {path}.")
  return TokenizerConfig(
    do_lower_case=values.get("do_lower_case", True),
    remove_space=values.get("remove_space", True),
    normalize_quotes=values.get("normalize_quotes", True),
    digit_comma=values.get("digit_comma", "strip"),
  )
