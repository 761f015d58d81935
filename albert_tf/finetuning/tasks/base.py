"""What the engine and serving know of a task: its kind, its `TaskSpec`, and what it does for training."""

import abc
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json
import os
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import special

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.features import FeatureSet

TASK_FILE = "task.json"
_SHORTEST = 5  # [CLS] a [SEP] b [SEP]
SQUAD_VERSIONS = ("1.1", "2.0")
UNNAMED_OUTPUT = "logits"  # How `Outputs` names the output of a model that has one.

# Output name → array `[n, …]`, one row an example in order. Where batches have different lengths S and the output has
# an axis of S: a list of n arrays, at least as long as the row.
Outputs = Mapping[str, Sequence[np.ndarray]]


class TaskKind(NamedTuple):
  """What belongs to a kind of task.

  Attributes:
    model: the class of `finetuning.models`.
    signature: the kind of SavedModel, `export_saved_model.py --model`.
    command: the script of `tpu_scripts/` that trains it.
  """

  model: str
  signature: str
  command: str


TASK_KINDS: Mapping[str, TaskKind] = {
  "classification": TaskKind("AlbertClassifier", "classifier", "run_glue.py"),
  "regression": TaskKind("AlbertClassifier", "classifier", "run_glue.py"),
  "question_answering": TaskKind("AlbertQuestionAnswering", "question_answering", "run_squad.py"),
  "multiple_choice": TaskKind("AlbertMultipleChoice", "multiple_choice", "run_race.py"),
  "token_classification": TaskKind("AlbertTagger", "token_classification", "run_tagging.py"),
}

# What can be served: two kinds straight from pretraining, the others from a fine-tuned run.
PRETRAINED_SIGNATURES = ("encoder", "fill_mask")
SIGNATURES = (*PRETRAINED_SIGNATURES, *dict.fromkeys(kind.signature for kind in TASK_KINDS.values()))
SMALL_SIGNATURES = (*PRETRAINED_SIGNATURES, "classifier", "question_answering")  # Of LiteRT and ONNX.


def task_kinds_of(signature: str) -> tuple[str, ...]:
  """The kinds of task that are served so; none of those that pretraining alone makes."""
  return tuple(name for name, kind in TASK_KINDS.items() if kind.signature == signature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSpec:
  """The kind of task and what must be known to use its model on new text.

  Attributes:
    kind: one of `TASK_KINDS`.
    name: for people and file names, such as "mrpc", "squad", "custom".
    label_names: names of the classes or tags, by id; empty for regression, questions and choices.
    pair: whether an example has two texts.
    max_seq_length: S, the length it was trained with.
    squad_version: question_answering: "1.1" (`SpanHead`) or "2.0" (`Squad2Head`); else empty.
    max_query_length, doc_stride, max_answer_length: question_answering, in pieces.
    null_score_diff_threshold: question_answering 2.0: no answer where the null score is at least this.
    max_qa_length: multiple_choice: pieces of question and choice that are kept, its last ones.
    columns: of a person's own file, which column is what, as `TableColumns`, `ChoiceColumns` or `Columns` name them;
      empty otherwise.
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
  columns: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

  def __post_init__(self) -> None:
    if self.kind not in TASK_KINDS:
      raise UserError(f"kind must be one of {', '.join(TASK_KINDS)}. Received: {self.kind!r}.")
    if self.max_seq_length < _SHORTEST:
      raise UserError(
        f"max_seq_length must be at least {_SHORTEST}: [CLS], [SEP] and a token of each text. "
        f"Received: {self.max_seq_length}."
      )
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
  def model(self) -> str:
    """The class of `finetuning.models`."""
    return TASK_KINDS[self.kind].model

  @property
  def signature(self) -> str:
    """The kind of SavedModel."""
    return TASK_KINDS[self.kind].signature

  @property
  def has_head_dropout(self) -> bool:
    """Whether there is dropout before the head's logits; SQuAD 1.1's has none."""
    return self.squad_version != "1.1"

  @property
  def num_labels(self) -> int:
    """Outputs of a classification head: classes or tags; 1 for a value or a choice's score."""
    return len(self.label_names) or 1

  def settled(self, metrics: Mapping[str, float]) -> "TaskSpec":
    """With what an evaluation found out: the threshold of SQuAD 2.0."""
    found = metrics.get("null_score_diff_threshold", self.null_score_diff_threshold)
    return dataclasses.replace(self, null_score_diff_threshold=float(found))

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
      commands = dict.fromkeys(kind.command for kind in TASK_KINDS.values())
      raise UserError(
        f"A fine-tuned run directory holds {TASK_FILE}. Received: {directory}, which has none. "
        f"Name the --output_dir of {', '.join(commands)}."
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
    columns = {name: tuple(v) if isinstance(v, list) else v for name, v in values.get("columns", {}).items()}
    return cls(**{**values, "label_names": tuple(values.get("label_names", ())), "columns": columns})


class FineTuningTask(abc.ABC):
  """A task on its data, as `fit.fine_tune` needs it.

  Attributes:
    spec: what is saved as `task.json`; decides the model (`models.make_model`). It stays as it is: the engine saves
      `spec.settled(metrics)`.
    best_metric: the key of `evaluate`'s result by which the best checkpoint is chosen; higher is better.
    data: what the examples are read from, by flag name, such as {"train_file": …}; recorded in run.json.
    head_options: of the head, beside the number of labels and dropout, which the engine gives.
    splits: "train", "eval", "test" and more (see `more_splits`) → the examples; those not needed may be absent.
  """

  spec: TaskSpec
  best_metric: str
  data: Mapping[str, str] = {}
  head_options: ClassVar[Mapping[str, Any]] = {}
  splits: Mapping[str, Any]

  @abc.abstractmethod
  def features(self, split: str) -> FeatureSet:
    """The examples of a split, with labels where it is scored.

    Raises:
      UserError: there is none of that name, or labels that it must have are missing.
    """

  def train_features(self) -> FeatureSet:
    """The training examples, with labels."""
    return self.features("train")

  def eval_features(self) -> FeatureSet:
    """The evaluation examples. The engine calls it once and keeps the result."""
    return self.features("eval")

  def test_features(self) -> FeatureSet | None:
    """The examples to predict; None where there are none. Those with labels are scored as well ("test_…")."""
    return self.features("test") if "test" in self.splits else None

  def more_splits(self) -> Mapping[str, FeatureSet]:
    """Further splits, as MNLI's: names that begin with "eval_" are evaluated too, with "test_" predicted."""
    return {name: self.features(name) for name in self.splits if name.startswith(("eval_", "test_"))}

  def split(self, name: str) -> Any:
    """The examples of a split.

    Raises:
      UserError: there are none.
    """
    if name not in self.splits:
      raise UserError(f"{self.spec.name} needs {name} data here. Received: none. Name its file or folder.")
    return self.splits[name]

  @abc.abstractmethod
  def loss(self) -> Any:
    """What Keras' `compile` takes as `loss`: one, or a mapping with the keys of the labels."""

  def loss_weights(self) -> Any:
    """What Keras' `compile` takes as `loss_weights`."""
    return None

  @abc.abstractmethod
  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """The task's metrics.

    Args:
      outputs: of the model for every row of the split, in order.
      split: "eval" or one of `more_splits`.
    """

  @abc.abstractmethod
  def write_predictions(
    self, outputs: Outputs, split: str, directory: str, *, spec: TaskSpec | None = None
  ) -> None:
    """Writes predictions into `directory`.

    Args:
      outputs: of the model.
      split: "eval", "test" or one of `more_splits`.
      directory: exists.
      spec: with what the model's evaluation found out; None: the task's.
    """

  def plot(self, outputs: Outputs, path: str) -> bool:
    """Draws the evaluation predictions into the PNG file `path`; false where there is nothing to draw."""
    del outputs, path
    return False

  def average(self, outputs: Sequence[Outputs]) -> Outputs:
    """The ensemble's outputs: means over models, for outputs that are scores.

    Raises:
      UserError: the outputs are no scores that may be averaged.
    """
    means: dict[str, Sequence[np.ndarray]] = {}
    for name in outputs[0]:
      columns = [model[name] for model in outputs]
      if not np.issubdtype(np.asarray(columns[0][0]).dtype, np.floating):
        raise UserError(
          f"An ensemble averages scores. Received: the output {name!r} of {self.spec.name}, which holds "
          "positions. Run without --ensemble."
        )
      rows = [np.mean(parts, axis=0) for parts in zip(*columns, strict=True)]
      means[name] = np.stack(rows) if isinstance(columns[0], np.ndarray) else rows
    return means

  def stored(self, directory: str, split: str) -> Outputs:
    """The outputs for a split that a run left in its directory with its predictions, for `ensemble`.

    Raises:
      UserError: it left none, or for other examples.
    """
    del directory, split
    raise UserError(f"{self.spec.kind} has no --ensemble_of. Received: it. Use --seeds with --ensemble.")

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    """What several runs left (`stored`) as one run's outputs: means of probabilities, or of values (section 4.9)."""
    raise NotImplementedError


def cross_entropy(logits: Any, labels: Any) -> np.ndarray:
  """Of each example, float64 `[n]`: -log softmax(logits)[label] of logits `[n, C]` and labels `[n]`."""
  labels = np.asarray(labels, np.int64)
  return -special.log_softmax(np.asarray(logits, np.float64), axis=-1)[np.arange(len(labels)), labels]


def write_tsv(path: str, rows: Iterable[Sequence[str]]) -> None:
  """Writes rows of cells, the header first."""
  with files.atomic_writer(path, "w") as stream:
    stream.writelines("\t".join(cells) + "\n" for cells in rows)
