"""How questions become windows, and windows answers."""

import dataclasses

from albert_tf.errors import UserError

_SPECIAL_PIECES = 3  # [CLS] query [SEP] text [SEP]
_MOST_BEAMS = 32  # Batches are padded to multiples of this.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadSettings:
  """Sizes, in pieces, under the original's flag names.

  Attributes:
    max_seq_length: S, of a window with its question.
    max_query_length: a question is cut to this.
    doc_stride: distance of two windows' beginnings.
    max_answer_length: of an answer.
    n_best_size: answers kept a question; in 1.1 also the starts and ends tried in a window.
    start_n_top, end_n_top: 2.0: starts followed in a window, and ends for each.
    keep_empty_windows: train on windows that lack their question's answer, at [CLS], as the original does in both
      versions: it teaches the model to score them low.
  """

  max_seq_length: int = 384
  max_query_length: int = 64
  doc_stride: int = 128
  max_answer_length: int = 30
  n_best_size: int = 20
  start_n_top: int = 5
  end_n_top: int = 5
  keep_empty_windows: bool = True

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type in (int, "int") and value < 1:
        raise UserError(f"{field.name} must be at least 1. Received: {value}.")
    if max(self.start_n_top, self.end_n_top) > _MOST_BEAMS:
      raise UserError(
        f"start_n_top and end_n_top must be at most {_MOST_BEAMS}: short windows have no more places. Received: "
        f"{self.start_n_top} and {self.end_n_top}."
      )
    if self.window(self.max_query_length) < 1:
      raise UserError(
        f"max_seq_length must be more than max_query_length + {_SPECIAL_PIECES}, so that text fits beside the "
        f"question. Received: {self.max_seq_length} and {self.max_query_length}."
      )

  def window(self, query_length: int) -> int:
    """Pieces of text that fit beside a question of that many."""
    return self.max_seq_length - query_length - _SPECIAL_PIECES
