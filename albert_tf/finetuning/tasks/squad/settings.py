"""The settings of SQuAD: sizes, and which files are used how."""

from typing import Literal

from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

# They travel with a model.
SPEC_SIZES = ("max_seq_length", "max_query_length", "doc_stride", "max_answer_length")
_SPECIAL_PIECES = 3  # [CLS] question [SEP] text [SEP]
_MOST_BEAMS = 32  # Batches are padded to multiples of this: short windows have no more places.


class SquadSettings(Settings):
  """Sizes, in tokens, under the original's flag names."""

  max_seq_length: int = setting(384, "Tokens of a window with its question.", minimum=1)
  max_query_length: int = setting(64, "Most tokens of a question; longer ones are cut.", minimum=1)
  doc_stride: int = setting(128, "Tokens from the start of one window to the start of the next.", minimum=1)
  max_answer_length: int = setting(30, "Most tokens of an answer.", minimum=1)
  n_best_size: int = setting(
    20, "Answers kept for each question; in 1.1 also the starts and ends tried in a window.", minimum=1
  )
  start_n_top: int = setting(5, "2.0: starts followed in each window.", minimum=1, maximum=_MOST_BEAMS)
  end_n_top: int = setting(5, "2.0: ends kept for each start.", minimum=1, maximum=_MOST_BEAMS)

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.max_seq_length <= self.max_query_length + _SPECIAL_PIECES:
      raise UserError(
        f"max_seq_length must be more than max_query_length + {_SPECIAL_PIECES}, so that text fits next to the "
        f"question. Received: {self.max_seq_length} and {self.max_query_length}."
      )


class SquadFiles(Settings):
  """The files, and their use."""

  version: Literal["1.1", "2.0"] = setting(
    help="Version of SQuAD. Default without --do_train: the fine-tuned run's."
  )
  train_file: str = setting("", "Questions with answers to train on, SQuAD's JSON.")
  predict_file: str = setting("", "Questions to answer; scored if the file has the answers.")
  selection_split: Literal["train", "predict"] = setting(
    "train",
    "Questions that choose checkpoint and threshold: held out of --train_file, or --predict_file itself "
    "(the original's way; optimistic scores).",
  )
  held_out_fraction: float = setting(
    0.05, "Share of the training questions to hold out, in whole articles.", above=0.0, below=1.0
  )
  null_score_diff_threshold: float | None = setting(
    None, "2.0: no answer where the null score is at least this. Default: searched, or the fine-tuned run's."
  )
