"""A WordPiece vocabulary to test with."""

import pathlib

import sentencepiece
from support.goldens import SPM_MODEL

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(path: pathlib.Path) -> str:
  """From the goldens' SentencePiece model, as they were recorded with: "▁x" is "x", "x" is "##x", marks stay."""
  processor = sentencepiece.SentencePieceProcessor(model_file=SPM_MODEL)
  pieces = list(SPECIAL)
  for index in range(5, processor.vocab_size()):
    piece = processor.id_to_piece(index)
    token = piece[1:] if piece.startswith("▁") else ("##" + piece if piece.isalnum() else piece)
    if token:
      pieces.append(token)
  path.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
  return str(path)
