"""Settings of SQuAD: sizes, files and their use."""

from typing import Literal

from albert_tf.configs.albert_config import MOST_POSITIONS
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

# A model is saved with these.
SPEC_SIZES = ("max_seq_length", "max_query_length", "doc_stride", "max_answer_length")
_SPECIAL_PIECES = 3  # [CLS] question [SEP] text [SEP]
_MOST_BEAMS = 32  # Batches are padded to multiples of this: short windows have no more places.


class SquadSettings(Settings):
  """Sizes in tokens, with the original's flag names."""

  max_seq_length: int = setting(
    384, "Tokens of a window. Default: as trained, else 384.", minimum=1, maximum=MOST_POSITIONS
  )
  max_query_length: int = setting(
    64, "Most tokens of a question. Default: as trained, else 64.", minimum=1
  )
  doc_stride: int = setting(
    128, "Tokens between two windows' starts. Default: as trained, else 128.", minimum=1
  )
  max_answer_length: int = setting(
    30, "Most tokens of an answer. Default: as trained, else 30.", minimum=1
  )
  n_best_size: int = setting(
    20,
    "Number of answers for each question. 1.1: also of starts and ends tried in a window.",
    minimum=1,
  )
  start_n_top: int = setting(
    5, "2.0: number of starts tried in each window.", minimum=1, maximum=_MOST_BEAMS
  )
  end_n_top: int = setting(
    5, "2.0: number of ends tried for each start.", minimum=1, maximum=_MOST_BEAMS
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.max_seq_length <= self.max_query_length + _SPECIAL_PIECES:
      raise UserError(
        f"max_seq_length must be more than max_query_length + {_SPECIAL_PIECES}, so that text fits next to the "
        f"question. Received: {self.max_seq_length} and {self.max_query_length}."
      )


class SquadFiles(Settings):
  """The files, and how they are used."""

  squad_version: Literal["1.1", "2.0"] = setting(
    help="Version of SQuAD. Without --do_train: that of the run.", flag="version"
  )
  train_file: str = setting("", "Questions with answers for training, as SQuAD's JSON.")
  predict_file: str = setting(
    "", "Questions to answer; with answers in the file, predictions are scored."
  )
  selection_split: Literal["train", "predict"] = setting(
    "train",
    "Questions that choose checkpoint and threshold: a part of --train_file, or all of --predict_file "
    "(as the original does; scores are optimistic).",
  )
  eval_fraction: float = setting(
    0.05, "Share of the training questions to hold out, as whole articles.", above=0.0, below=1.0
  )
