"""A masked row of ids as text, as `inspect_records.py` and `run_pretrain.py --show_update` print it."""

import numpy as np

from albert_tf.tokenization.base import Tokenizer


def masked_text(
  ids: np.ndarray, positions: np.ndarray, answers: np.ndarray, tokenizer: Tokenizer
) -> str:
  """The row as text, a segment a line.

  An answer is {answer} where [MASK] is shown, {answer ✓} where kept, {shown → answer}.

  Args:
    ids: [T] the input, without padding.
    positions, answers: [M] the masked places, and the ids that were there.
  """
  answer_at = dict(zip(positions.tolist(), answers.tolist(), strict=True))
  text = ""
  for position, piece_id in enumerate(ids.tolist()):
    piece = tokenizer.pieces[piece_id]
    if position in answer_at:
      answer_id = answer_at[position]
      answer = tokenizer.piece_text(tokenizer.pieces[answer_id])
      if answer.startswith(" "):
        text += " "
      # A space stays outside of the braces.
      text += "{"
      if piece_id not in (answer_id, tokenizer.mask_id):
        text += f"{tokenizer.piece_text(piece).removeprefix(' ')} → "
      text += answer.removeprefix(" ")
      if piece_id == answer_id:
        text += " ✓"
      text += "}"
    elif piece_id == tokenizer.cls_id:
      text += piece
    elif piece_id == tokenizer.sep_id:
      text += f" {piece}\n"
    else:
      text += tokenizer.piece_text(piece)
  return text.strip("\n")
