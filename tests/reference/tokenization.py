"""The original's tokenization, piece by piece as its specification reads; slow, and shares no code with ours."""

import unicodedata


def encode(processor, text: str, *, lower: bool, strip: bool) -> list[int]:
  """Ids of `text` by a `sentencepiece.SentencePieceProcessor`, with the digit-comma rule `strip` or not."""
  text = " ".join(text.strip().split())
  text = unicodedata.normalize("NFKD", text)
  text = "".join([char for char in text if not unicodedata.combining(char)])
  if lower:
    text = text.lower()
  pieces: list[str] = []
  for piece in processor.encode(text, out_type=str):
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
