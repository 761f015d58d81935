"""What a fine-tuned model was made for: `task.json` in its run directory, read by prediction and serving."""

from collections.abc import Mapping
import dataclasses
import json
import os
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

TASK_FILE = "task.json"
TASK_KINDS = ("classification", "regression", "question_answering", "multiple_choice", "token_classification")
SQUAD_VERSIONS = ("1.1", "2.0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSpec:
  """The kind of task and what must be known to use its model on new text.

  Attributes:
    kind: one of `TASK_KINDS`.
    name: for people and file names, such as "mrpc", "squad", "custom".
    label_names: names of the classes or tags, by id; empty for regression, questions and choices.
    pair: whether an example has two texts.
    max_seq_length: S, the length it was trained with.
    squad_version: question_answering: "1.1" (`AlbertForSpan`) or "2.0" (`AlbertForSquad2`); else empty.
    max_query_length, doc_stride, max_answer_length: question_answering, in pieces.
    null_score_diff_threshold: question_answering 2.0: no answer where the null score is at least this.
    max_qa_length: multiple_choice: pieces of question and choice that are kept, its last ones.
  """

  kind: str
  name: str
  label_names: tuple[str, ...] = ()
  pair: bool = False
  max_seq_length: int = 512
  squad_version: str = ""
  max_query_length: int = 64
  doc_stride: int = 128
  max_answer_length: int = 30
  null_score_diff_threshold: float = 0.0
  max_qa_length: int = 128

  def __post_init__(self) -> None:
    if self.kind not in TASK_KINDS:
      raise UserError(f"kind must be one of {', '.join(TASK_KINDS)}. Received: {self.kind!r}.")
    if (self.kind == "question_answering") != (self.squad_version in SQUAD_VERSIONS):
      raise UserError(
        f"squad_version must be one of {', '.join(SQUAD_VERSIONS)} for question_answering and empty otherwise. "
        f"Received: kind={self.kind!r}, squad_version={self.squad_version!r}."
      )
    if (self.kind in ("classification", "token_classification")) != bool(self.label_names):
      raise UserError(
        "label_names belong to classification and token_classification, and only there. "
        f"Received: kind={self.kind!r}, label_names={self.label_names!r}."
      )

  @property
  def num_labels(self) -> int:
    """Outputs of a classification head: classes or tags; 1 for a value or a choice's score."""
    return len(self.label_names) or 1

  def save(self, directory: str) -> None:
    """Writes `task.json`."""
    with files.atomic_writer(os.path.join(directory, TASK_FILE), "w") as stream:
      stream.write(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

  @classmethod
  def load(cls, directory: str) -> "TaskSpec":
    """Reads `task.json` of a fine-tuned run directory.

    Raises:
      UserError: there is none, or it is not one of this project's.
    """
    path = os.path.join(directory, TASK_FILE)
    if not files.exists(path):
      raise UserError(
        f"A fine-tuned run directory holds {TASK_FILE}. Received: {directory}, which has none. "
        "Name the --output_dir of run_glue.py, run_squad.py, run_race.py or run_tagging.py."
      )
    with files.open_binary(path) as stream:
      return cls.from_dict(json.load(stream), source=path)

  @classmethod
  def from_dict(cls, values: Mapping[str, Any], *, source: str) -> "TaskSpec":
    """The specification that `save` wrote; unknown keys are refused."""
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - known)
    if unknown:
      raise UserError(
        f"{TASK_FILE} has only the keys {', '.join(sorted(known))}. Received: {unknown} in {source}."
      )
    return cls(**{**values, "label_names": tuple(values.get("label_names", ()))})
