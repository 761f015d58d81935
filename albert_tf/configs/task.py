"""Tasks of fine-tuned models: the kinds of task, and `TaskSpec`, which a run saves as `task.json`.

Fine-tuning writes it; conversion, serving and `from_pretrained` read it. No TensorFlow.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any, Literal, NamedTuple

from albert_tf import files, json_files
from albert_tf.configs.albert_config import MOST_POSITIONS, AlbertConfig
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

TASK_FILE = "task.json"
RESULTS_FILE = "results.json"
SQUAD_VERSIONS = ("1.1", "2.0")
SHORTEST_ROW = 5  # [CLS] a [SEP] b [SEP]


class TaskKind(NamedTuple):
  """The names of a kind of task elsewhere; `keras_api` has its Keras class."""

  # The kind of SavedModel, as in `export_saved_model.py --model`.
  export_kind: str
  # The task's name on Hugging Face's hub.
  hub: str
  # Hugging Face's class, as in `config.json`; empty for none.
  huggingface: str = ""
  # `problem_type` of that class in `config.json`.
  problem_type: str = ""


_SEQUENCES = "AlbertForSequenceClassification"
TASK_KINDS: Mapping[str, TaskKind] = {
  # One of the labels.
  "classification": TaskKind(
    "classifier", "text-classification", _SEQUENCES, "single_label_classification"
  ),
  # Any of them, or none.
  "multi_label": TaskKind(
    "classifier", "text-classification", _SEQUENCES, "multi_label_classification"
  ),
  "regression": TaskKind("classifier", "text-classification", _SEQUENCES, "regression"),
  # Hugging Face's class is of SQuAD 1.1.
  "question_answering": TaskKind(
    "question_answering", "question-answering", "AlbertForQuestionAnswering"
  ),
  "multiple_choice": TaskKind("multiple_choice", "multiple-choice", "AlbertForMultipleChoice"),
  "token_classification": TaskKind(
    "token_classification", "token-classification", "AlbertForTokenClassification"
  ),
  "sentence_vectors": TaskKind("sentence_encoder", "sentence-similarity"),
}
_LABELLED = ("classification", "multi_label", "token_classification")

# What can be served: two kinds straight from pretraining, the others from a fine-tuned run.
# Three kinds of task have the SavedModel of a classifier: it is named once.
EXPORT_KINDS = ("encoder", "fill_mask") + tuple(
  dict.fromkeys(kind.export_kind for kind in TASK_KINDS.values())
)


class TaskSpec(Settings):
  """The kind of task, and the settings that its model needs for new text."""

  format_version: Literal[1] = 1
  kind: str = setting(help="The kind of task.", choices=tuple(TASK_KINDS))
  name: str = setting(help="Name in messages and file names, such as mrpc, squad, custom.")
  label_names: tuple[str, ...] = setting((), "Names of the classes or tags, by id; else empty.")
  thresholds: tuple[float, ...] = setting(
    (),
    "multi_label: the probability from which each label is given. Empty: 0.5.",
    minimum=0,
    maximum=1,
  )
  pair: bool = setting(False, "Whether an example has two texts.")
  max_seq_length: int = setting(
    512, help="S, the length it was trained with.", minimum=SHORTEST_ROW, maximum=MOST_POSITIONS
  )
  squad_version: str = setting("", "question_answering: 1.1 (`SpanHead`) or 2.0 (`Squad2Head`).")
  max_query_length: int = setting(64, "question_answering: tokens of a question kept.", minimum=1)
  doc_stride: int = setting(128, "question_answering: tokens from window to window.", minimum=1)
  max_answer_length: int = setting(
    30, "question_answering: tokens of the longest answer.", minimum=1
  )
  null_score_diff_threshold: float = setting(
    0.0, "question_answering 2.0: no answer where the null score is at least this."
  )
  max_qa_length: int = setting(
    128, "multiple_choice: tokens of question and choice that are kept, the last ones.", minimum=1
  )
  pooling: str = setting(
    "mean",
    "sentence_vectors: the mean over the tokens, or the vector at [CLS].",
    choices=("mean", "cls"),
  )
  normalize: bool = setting(True, "sentence_vectors: whether vectors have length 1.")
  exit_depths: tuple[int, ...] = setting(
    (), "Numbers of layers that the head was trained to read, ascending; else empty.", minimum=1
  )
  exit_threshold: float = setting(
    1.0, "The confidence above which an answer stops early; 1 means never.", minimum=0, maximum=1
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if (self.kind == "question_answering") != (self.squad_version in SQUAD_VERSIONS):
      raise UserError(
        f"squad_version must be one of {', '.join(SQUAD_VERSIONS)} for question_answering and "
        f"empty otherwise. Received: kind={self.kind!r}, squad_version={self.squad_version!r}."
      )
    if (self.kind in _LABELLED) != bool(self.label_names):
      raise UserError(
        f"label_names belong to {', '.join(_LABELLED)}, and only there. "
        f"Received: kind={self.kind!r}, label_names={self.label_names!r}."
      )
    for name, count in collections.Counter(self.label_names).items():
      if count > 1 or not name.strip():
        raise UserError(
          f"Each label needs a name, and a name of its own. Received: {name!r} among "
          f"{', '.join(map(repr, self.label_names[:9]))}. Rename it."
        )
    num_thresholds = 0
    if self.kind == "multi_label":
      num_thresholds = len(self.label_names)
    if self.thresholds and len(self.thresholds) != num_thresholds:
      raise UserError(
        f"thresholds belong to multi_label, one to a label. Received: {self.thresholds!r}."
      )

  @property
  def export_kind(self) -> str:
    """The kind of SavedModel."""
    return TASK_KINDS[self.kind].export_kind

  @property
  def has_head_dropout(self) -> bool:
    """Whether there is dropout before the head's logits.

    The original has none for SQuAD 1.1, and a sentence vector has no logits.
    """
    return self.squad_version != "1.1" and self.kind != "sentence_vectors"

  @property
  def num_labels(self) -> int:
    """Number of outputs of the head: classes or tags; 1 for a value or the score of a choice."""
    return len(self.label_names) or 1

  @property
  def labels_are_numbered(self) -> bool:
    """Whether labels have only numbers: 0 1 2, or LABEL_0 LABEL_1 LABEL_2 of transformers."""
    numbers = [str(number) for number in range(len(self.label_names))]
    return list(self.label_names) in (numbers, [f"LABEL_{number}" for number in numbers])

  def with_thresholds(self, metrics: Mapping[str, float]) -> "TaskSpec":
    """A copy with the thresholds that an evaluation chose.

    Args:
      metrics: of the evaluation: `null_score_diff_threshold` for SQuAD 2.0, or a `threshold_LABEL`
        for every label. Other metrics change nothing.
    """
    changes: dict[str, Any] = {}
    if "null_score_diff_threshold" in metrics:
      changes["null_score_diff_threshold"] = float(metrics["null_score_diff_threshold"])
    names = [f"threshold_{name}" for name in self.label_names]
    thresholds = [metrics[name] for name in names if name in metrics]
    if thresholds:
      changes["thresholds"] = thresholds
    return dataclasses.replace(self, **changes)

  def save(self, directory: str) -> None:
    """Writes `task.json`."""
    json_files.write(os.path.join(directory, TASK_FILE), dataclasses.asdict(self))

  @classmethod
  def load(cls, directory: str) -> "TaskSpec":
    """As `find`, but raises `UserError` if there is no task."""
    spec = cls.find(directory)
    if spec is None:
      raise UserError(
        f"A fine-tuned run directory holds {TASK_FILE}. Received: {directory}, which has none. "
        "Name the --output_dir of run_glue.py or of another fine-tuning command."
      )
    return spec

  @classmethod
  def find(cls, directory: str) -> "TaskSpec | None":
    """Reads `task.json` of a run, or `config.json` of a fine-tuned model of Hugging Face.

    Raises:
      UserError: the file is damaged or of another program, or its problem type or numbers of
        labels are unknown.
    """
    saved = None
    path = os.path.join(directory, TASK_FILE)
    if files.exists(path):
      saved = cls.from_dict(json_files.read(path), source=path)
    huggingface = read_huggingface_task(directory)
    if huggingface is None:
      return saved
    if saved is not None and saved.kind == huggingface.kind:
      # Hugging Face's tools may have renamed the labels; the other settings are only in our file.
      return dataclasses.replace(saved, label_names=huggingface.label_names)
    return huggingface

  def to_huggingface_dict(self) -> dict[str, Any]:
    """The entries of Hugging Face's `config.json` for a task; empty if it has no class for it."""
    kind = TASK_KINDS[self.kind]
    if self.squad_version == "2.0" or not kind.huggingface:
      return {}
    values: dict[str, Any] = {"architectures": [kind.huggingface]}
    if kind.problem_type:
      values["problem_type"] = kind.problem_type
    if self.label_names:
      values |= huggingface_labels(self.label_names)
    return values


def huggingface_labels(names: Sequence[str]) -> dict[str, Any]:
  """Names of labels, by id, as the entries of Hugging Face's `config.json`."""
  return {
    "id2label": {str(number): name for number, name in enumerate(names)},
    "label2id": {name: number for number, name in enumerate(names)},
  }


def read_huggingface_task(directory: str) -> TaskSpec | None:
  """The task of a fine-tuned model of Hugging Face; None if its class has no task here.

  Raises:
    UserError: the problem type is unknown, or labels are not numbered from 0.
  """
  path = os.path.join(directory, "config.json")
  config = json_files.find(
    path, problem_type=str | None, id2label=dict | None, max_position_embeddings=int | None
  )
  kind_of_problem = {
    names.problem_type: kind
    for kind, names in TASK_KINDS.items()
    if names.huggingface and config.get("architectures") == [names.huggingface]
  }
  if not kind_of_problem:
    return None

  # Labels and problem type, with the defaults of transformers.
  labels = config.get("id2label")
  if not labels:
    labels = {"0": "LABEL_0", "1": "LABEL_1"}
  label_names: tuple[Any, ...] = tuple(labels.get(str(number)) for number in range(len(labels)))
  problem_type = config.get("problem_type")
  if not problem_type:
    problem_type = "single_label_classification"
    if len(labels) == 1:
      problem_type = "regression"
  # A class with one kind of task has no problem types.
  kind = kind_of_problem.get("", kind_of_problem.get(problem_type))
  if kind is None or not all(isinstance(name, str) for name in label_names):
    raise UserError(
      f"problem_type must be one of {', '.join(filter(None, kind_of_problem)) or 'any'}, and "
      f"id2label name the labels from 0 on. Received: {problem_type}, {labels!r:.80} in {path}. "
      "To use only its encoder, write AlbertModel in architectures."
    )
  if kind not in _LABELLED:
    label_names = ()

  max_seq_length = config.get("max_position_embeddings") or 512
  tokenizer_path = os.path.join(directory, "tokenizer_config.json")
  tokenizer_config = json_files.find(tokenizer_path, model_max_length=float | int | None)
  limit = tokenizer_config.get("model_max_length")
  if limit:
    # A number such as 1e30 means: no limit.
    max_seq_length = min(max_seq_length, int(limit))
  squad_version = ""
  if kind == "question_answering":
    squad_version = "1.1"
  return TaskSpec(
    kind=kind,
    name="custom",
    label_names=label_names,
    max_seq_length=max_seq_length,
    squad_version=squad_version,
  )


def default_length(config: AlbertConfig, task: TaskSpec | None) -> int:
  """Tokens of a row where nobody chooses: the length of fine-tuning, else the model's positions."""
  if task is None:
    return config.max_position_embeddings
  # A task of Hugging Face may name a greater length than the model has positions.
  return min(task.max_seq_length, config.max_position_embeddings)


def best_run(directory: str) -> str:
  """The directory of the best seed, for a fine-tuning with several; else `directory` itself."""
  path = os.path.join(directory, RESULTS_FILE)
  seed_folder = json_files.find(path, best_run=str | None).get("best_run")
  if seed_folder:
    return os.path.join(directory, seed_folder)
  return directory
