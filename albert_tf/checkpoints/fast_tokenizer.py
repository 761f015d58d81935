"""Writes `tokenizer.json`, with which Hugging Face's fast tokenizers give this project's ids.

Conversion writes it. Without the file, Hugging Face's code makes a tokenizer from the SentencePiece
model, which gives other ids.
"""

import base64
import json
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as model_proto

from albert_tf.tokenization.config import TokenizerConfig
from albert_tf.tokenization.saved_tokenizer import NEVER
from albert_tf.tokenization.tokenizer import ends_in_digit_comma
from albert_tf.tokenization.unicode_tables import combining_class, space_class
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE


def tokenizer_json(model: bytes, config: TokenizerConfig) -> str | None:
  """The text of the file; None for a model that is not of type unigram (ALBERT's models are).

  The ids differ from this project's in three cases that the format cannot express: tokens like
  "▁1990," are never used; of two segmentations with equal scores the other may be chosen; a capital
  sigma before an apostrophe at the end of a word gets another form.

  Args:
    model: a serialized SentencePiece model.
    config: the tokenizer's settings.
  """
  # The format has other algorithms too, but their scores mean something else.
  proto = model_proto.ModelProto.FromString(model)
  if proto.trainer_spec.model_type != model_proto.TrainerSpec.UNIGRAM:
    return None
  # The steps of a fast tokenizer, in the order in which it applies them.
  ids = {piece.piece: index for index, piece in enumerate(proto.pieces)}
  values = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": _special_tokens(proto),
    "normalizer": {"type": "Sequence", "normalizers": _normalizers(proto, config)},
    "pre_tokenizer": _METASPACE,
    "post_processor": _template(ids),
    "decoder": _METASPACE,
    "model": {
      "type": "Unigram",
      "unk_id": proto.trainer_spec.unk_id,
      "vocab": _scores(proto),
      "byte_fallback": proto.trainer_spec.byte_fallback,
    },
  }
  return json.dumps(values, ensure_ascii=False) + "\n"


# Only the beginning of a text gets a "▁", and not the comma of "[MASK], and": the text between two
# special tokens is normalised by itself.
_METASPACE = {
  "type": "Metaspace",
  "replacement": SPIECE_UNDERLINE,
  "prepend_scheme": "first",
  "split": False,
}


def _special_tokens(proto: model_proto.ModelProto) -> list[dict[str, Any]]:
  """The tokens that Hugging Face finds before the text is normalised, by id."""
  unknown = proto.pieces[proto.trainer_spec.unk_id].piece
  names = {unknown, "<pad>", "[CLS]", "[SEP]", "[MASK]"}
  tokens = []
  for index, piece in enumerate(proto.pieces):
    if piece.piece in names:
      token = {
        "id": index,
        "content": piece.piece,
        "lstrip": piece.piece == "[MASK]",  # The mask stands for a word with the space before it.
        "single_word": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
      }
      tokens.append(token)
  return tokens


def _scores(proto: model_proto.ModelProto) -> list[tuple[str, float]]:
  """Every token with its score for segmentations."""
  kinds = model_proto.ModelProto.SentencePiece
  best = max(piece.score for piece in proto.pieces if piece.type == kinds.NORMAL)
  rows = []
  for piece in proto.pieces:
    is_text = piece.type in (kinds.NORMAL, kinds.USER_DEFINED)
    score = piece.score
    if piece.type == kinds.USER_DEFINED:  # SentencePiece's rule: always preferred.
      score = len(piece.piece.encode()) * best - 0.1
    # Without "▁1990," the best segmentation is "▁1990" and ",", as the digit-comma rule makes it.
    if ends_in_digit_comma(piece.piece) or not is_text:
      score = NEVER
    rows.append((piece.piece, score))
  return rows


def _normalizers(proto: model_proto.ModelProto, config: TokenizerConfig) -> list[dict[str, Any]]:
  """The steps of `normalize_text`, then of SentencePiece."""

  def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

  # The space before a word stays: after a special token it tells "[MASK] s" from "[MASK]s". At the
  # beginning of a text it becomes the "▁" that each text has.
  strip_end = {"type": "Strip", "strip_left": False, "strip_right": True}
  steps = [replace(f"[{space_class()}]+", " "), strip_end]
  if config.normalize_quotes:
    steps.append(replace("``|''", '"'))
  if not config.keep_accents:
    steps.append({"type": "NFKD"})
    steps.append(replace(f"[{combining_class()}]", ""))
  if config.do_lower_case:
    # The library's lower case of Σ does not depend on its neighbours; Python's does.
    steps.append(replace(r"(?<=\p{L})\x{3a3}(?!\p{L})", "\N{GREEK SMALL LETTER FINAL SIGMA}"))
    steps.append({"type": "Lowercase"})
  charsmap = proto.normalizer_spec.precompiled_charsmap
  if charsmap:
    encoded = base64.b64encode(charsmap).decode()
    steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
  if proto.normalizer_spec.remove_extra_whitespaces:
    steps.append(replace(" {2,}", " "))
    steps.append(strip_end)
  return steps


def _template(ids: dict[str, int]) -> dict[str, Any]:
  """Templates of a text, [CLS] A [SEP], and of a pair, [CLS] A [SEP] B [SEP]."""

  def items(names: str, segment: int) -> list[dict[str, Any]]:
    kinds = {"A": "Sequence", "B": "Sequence"}
    return [
      {kinds.get(name, "SpecialToken"): {"id": name, "type_id": segment}} for name in names.split()
    ]

  first = items("[CLS] A [SEP]", 0)
  special_tokens = {
    piece: {"id": piece, "ids": [ids[piece]], "tokens": [piece]} for piece in ("[CLS]", "[SEP]")
  }
  return {
    "type": "TemplateProcessing",
    "single": first,
    "pair": first + items("B [SEP]", 1),
    "special_tokens": special_tokens,
  }


def tokenizer_config(
  config: TokenizerConfig, *, tokenizer_class: str, max_length: int = 512
) -> dict[str, Any]:
  """The content of `tokenizer_config.json`; `find_tokenizer` reads this project's settings there."""
  values = {
    "tokenizer_class": tokenizer_class,
    "model_max_length": max_length,  # Pipelines cut texts to this length.
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "<pad>",
    "mask_token": "[MASK]",
    "unk_token": "<unk>",
  }
  return values | config.to_dict()
