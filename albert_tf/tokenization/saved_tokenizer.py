"""Reads Hugging Face's `tokenizer.json`.

It is the only vocabulary in a folder that transformers 5 saves.
"""

import base64
from collections.abc import Mapping
import re
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as model_proto

from albert_tf import json_files
from albert_tf.errors import UserError

NEVER = -1e4  # A score so low that a token is never chosen.
_KINDS = model_proto.ModelProto.SentencePiece
_CONTROL_PIECES = ("<pad>", "[CLS]", "[SEP]", "[MASK]")
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # Of a model that spells unknown characters in bytes.
_STEPS = {"Replace", "Strip", "NFKD", "StripAccents", "Lowercase", "Precompiled"}


def read_saved_tokenizer(path: str) -> tuple[bytes, dict[str, Any]]:
  """Makes the content of a vocab.txt or of a SentencePiece model, and the fields of its settings.

  Raises:
    UserError: the file is damaged, or has another model or other steps before it.
  """
  values = json_files.read(path)
  try:
    model_type = values["model"]["type"]
    if model_type == "WordPiece":
      rules = values["normalizer"]
      settings = {
        "format": "albert_tf_wordpiece",
        "do_lower_case": rules["lowercase"],
        "keep_accents": negated(rules["strip_accents"]),
      }
      return _vocabulary_lines(values["model"]["vocab"]), settings

    steps = values["normalizer"]["normalizers"]
    names = {step["type"] for step in steps}
    if model_type != "Unigram" or names - _STEPS:
      raise ValueError(f"{model_type} after {', '.join(sorted(names))}")
    settings = {
      "format": "albert_tf",
      "do_lower_case": "Lowercase" in names,
      "keep_accents": "NFKD" not in names,
      # The rule is a step that replaces `` and '' by a double quote.
      "normalize_quotes": any(step.get("content") == '"' for step in steps),
    }
    return _sentencepiece_model(values, steps), settings
  # A file of another program may lack any field, or hold another type.
  except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      "Without spiece.model or vocab.txt a tokenizer.json must hold ALBERT's Unigram or BERT's "
      f"WordPiece model. Received: {path} ({type(error).__name__}: {error}). "
      "Put the original's spiece.model or vocab.txt beside it."
    ) from error


def negated(choice: bool | None) -> bool | None:
  """Between `keep_accents` and BERT's `strip_accents`; None, the default, is None for both."""
  if choice is None:
    return None
  return not choice


def _vocabulary_lines(ids: Mapping[str, int]) -> bytes:
  """The content of a vocab.txt, where the line is the id."""
  tokens = sorted(ids, key=ids.__getitem__)
  if [ids[token] for token in tokens] != list(range(len(tokens))):
    raise ValueError("ids with gaps")
  return "\n".join(tokens).encode()


def _sentencepiece_model(values: Mapping[str, Any], steps: list[dict[str, Any]]) -> bytes:
  """The content of a SentencePiece model with the same pieces, scores and rules."""
  proto = model_proto.ModelProto()
  model = values["model"]
  unknown = model["unk_id"]
  has_bytes = model.get("byte_fallback", False)
  added = {token["content"] for token in values["added_tokens"]}
  # The file does not say what kind a piece is. Control pieces are among the added ones.
  for index, (piece, score) in enumerate(model["vocab"]):
    kind = _KINDS.NORMAL
    if index == unknown:
      kind = _KINDS.UNKNOWN
    elif piece in _CONTROL_PIECES:
      kind = _KINDS.CONTROL
    elif has_bytes and _BYTE_PIECE.fullmatch(piece):
      kind = _KINDS.BYTE
    elif piece in added:
      kind = _KINDS.USER_DEFINED
    elif score <= NEVER:
      kind = _KINDS.UNUSED
    proto.pieces.add(piece=piece, score=score, type=kind)

  spec = proto.trainer_spec
  spec.unk_id = unknown
  spec.byte_fallback = has_bytes
  spec.unk_piece = proto.pieces[unknown].piece
  spec.pad_id = 0
  spec.pad_piece = proto.pieces[0].piece
  # ALBERT's models have no marks of a sentence's begin and end.
  spec.bos_id = -1
  spec.eos_id = -1
  proto.normalizer_spec.name = "tokenizer.json"
  for step in steps:
    if step["type"] == "Precompiled":
      charsmap = base64.b64decode(step["precompiled_charsmap"])
      proto.normalizer_spec.precompiled_charsmap = charsmap
  return proto.SerializeToString()
