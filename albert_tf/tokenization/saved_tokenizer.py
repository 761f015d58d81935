"""Reads Hugging Face's `tokenizer.json`, the only vocabulary in a folder that transformers 5 saves."""

import base64
from collections.abc import Mapping
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as model_proto

from albert_tf import files
from albert_tf.errors import UserError

NEVER = -1e4  # A score so low that a token is never chosen.
_KINDS = model_proto.ModelProto.SentencePiece
_CONTROL_PIECES = ("<pad>", "[CLS]", "[SEP]", "[MASK]")
_STEPS = {"Replace", "Strip", "NFKD", "StripAccents", "Lowercase", "Precompiled"}


def read_saved_tokenizer(path: str) -> tuple[bytes, dict[str, Any]]:
  """Makes the content of a vocab.txt or of a SentencePiece model, and the fields of its settings.

  Raises:
    UserError: the file is damaged, or has another model or other steps before it.
  """
  values = files.read_json(path)
  try:
    kind = values["model"]["type"]
    if kind == "WordPiece":
      rules = values["normalizer"]
      strips = rules["strip_accents"]
      keep_accents = None if strips is None else not strips
      settings = {
        "format": "albert_tf_wordpiece",
        "do_lower_case": rules["lowercase"],
        "keep_accents": keep_accents,
      }
      return _vocabulary_lines(values["model"]["vocab"]), settings
    steps = values["normalizer"]["normalizers"]
    names = {step["type"] for step in steps}
    if kind != "Unigram" or values["model"].get("byte_fallback") or names - _STEPS:
      raise ValueError(f"{kind} after {', '.join(sorted(names))}")
    settings = {
      "format": "albert_tf",
      "do_lower_case": "Lowercase" in names,
      "keep_accents": "NFKD" not in names,
      "normalize_quotes": any(step.get("content") == '"' for step in steps),
    }
    return _sentencepiece_model(values, steps), settings
  except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      "Without spiece.model or vocab.txt a tokenizer.json must hold ALBERT's Unigram or BERT's WordPiece model. "
      f"Received: {path} ({type(error).__name__}: {error}). Put the original's spiece.model or vocab.txt beside it."
    ) from error


def _vocabulary_lines(ids: Mapping[str, int]) -> bytes:
  tokens = sorted(ids, key=ids.__getitem__)
  if [ids[token] for token in tokens] != list(range(len(tokens))):
    raise ValueError("ids with gaps")
  return "\n".join(tokens).encode()


def _sentencepiece_model(values: Mapping[str, Any], steps: list[dict[str, Any]]) -> bytes:
  model = values["model"]
  added = {token["content"] for token in values["added_tokens"]}
  proto = model_proto.ModelProto()
  for index, (piece, score) in enumerate(model["vocab"]):
    kind = _KINDS.NORMAL
    if index == model["unk_id"]:
      kind = _KINDS.UNKNOWN
    elif piece in _CONTROL_PIECES:
      kind = _KINDS.CONTROL
    elif piece in added:
      kind = _KINDS.USER_DEFINED
    elif score <= NEVER:
      kind = _KINDS.UNUSED
    proto.pieces.add(piece=piece, score=score, type=kind)
  spec = proto.trainer_spec
  spec.unk_id, spec.pad_id, spec.bos_id, spec.eos_id = model["unk_id"], 0, -1, -1
  spec.unk_piece, spec.pad_piece = proto.pieces[spec.unk_id].piece, proto.pieces[0].piece
  proto.normalizer_spec.name = "tokenizer.json"
  for step in steps:
    if step["type"] == "Precompiled":
      proto.normalizer_spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
  return proto.SerializeToString()
