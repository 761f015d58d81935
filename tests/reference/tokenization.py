"""The original's tokenization and packing, one piece after the other; slow, and shares no code with ours."""

import functools
import unicodedata

import numpy as np


def is_character(char: str) -> bool:
  """Not a surrogate, nor one of the 66 noncharacters: TensorFlow 2.15 reads those as U+FFFD."""
  code = ord(char)
  is_surrogate = 0xD800 <= code <= 0xDFFF
  return not (is_surrogate or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE)


def normalize(text: str, *, lower: bool, quotes: bool = False) -> str:
  """Without accents and repeated white space; `quotes`: with one sign for TeX's pairs."""
  text = " ".join(text.strip().split())
  if quotes:
    text = text.replace("``", '"').replace("''", '"')
  text = unicodedata.normalize("NFKD", text)
  text = "".join([char for char in text if not unicodedata.combining(char)])
  return text.lower() if lower else text


def encode(processor, text: str, *, lower: bool, strip: bool) -> list[int]:
  """Ids of `text` by a `sentencepiece.SentencePieceProcessor`, with the digit-comma rule `strip` or not."""
  pieces: list[str] = []
  for piece in processor.encode(normalize(text, lower=lower), out_type=str):
    if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
      number = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
      if strip and piece[0] != "▁" and number[0][0] == "▁":
        if len(number[0]) == 1:
          number = number[1:]
        else:
          number[0] = number[0][1:]
      pieces.extend([*number, ","])
    else:
      pieces.append(piece)
  return [processor.piece_to_id(piece) for piece in pieces]


def encode_with_masks(tokenizer, text: str) -> list[int]:
  """Ids of a text in which "[MASK]" is the mask piece; what touches it from behind gets no "▁"."""
  first, *others = text.split("[MASK]")
  ids = tokenizer.encode(first)
  for part in others:
    row = tokenizer.encode(part)
    piece = tokenizer.pieces[row[0]] if row else ""
    if piece.startswith("▁") and not part[0].isspace():
      bare = tokenizer.ids.get(piece[1:], tokenizer.unk_id)
      if piece == "▁" or bare != tokenizer.unk_id:
        row[:1] = [bare] if piece != "▁" else []
    ids += [tokenizer.mask_id, *row]
  return ids


def batch(
  tokenizer, texts, pairs=None, *, max_length=512, pad_to_max_length=False, allow_mask=False
):
  """`[CLS] a [SEP] b [SEP]` of each text; the longer one loses its last token until both fit."""
  encode = functools.partial(encode_with_masks, tokenizer) if allow_mask else tokenizer.encode
  rows, segments = [], []
  for text, pair in zip(texts, pairs or [""] * len(texts), strict=True):
    a, b = encode(text), encode(pair)
    room = max_length - (3 if b else 2)
    while len(a) + len(b) > room:
      (a if len(a) > len(b) else b).pop()
    second = [*b, tokenizer.sep_id] if b else []
    rows.append([tokenizer.cls_id, *a, tokenizer.sep_id, *second])
    segments.append([0] * (len(a) + 2) + [1] * len(second))
  length = max_length if pad_to_max_length else max(map(len, rows), default=0)
  names = ("input_ids", "input_mask", "segment_ids")
  arrays = {name: np.zeros([len(rows), length], np.int32) for name in names}
  arrays["input_ids"][:] = tokenizer.pad_id
  for i, row in enumerate(rows):
    for name, values in zip(arrays, (row, 1, segments[i]), strict=True):
      arrays[name][i, : len(row)] = values
  return arrays
