"""Multiple choice as a fine-tuning task: questions and choices packed as the original packs RACE."""

from collections.abc import Iterable, Mapping, Sequence

from absl import logging
import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FeatureSet, Outputs, cross_entropy
from albert_tf.finetuning.tasks.choices import ChoiceExample, letter
from albert_tf.finetuning.tasks.rows import PackedRows
from albert_tf.finetuning.tasks.scores import ScoresTask
from albert_tf.progress import track
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_inputs import choice_batch

_QUESTIONS_AT_ONCE = 256


class MultipleChoiceTask(ScoresTask):
  """Multiple choice; the score is the share of questions answered right.

  A row a choice: `[CLS] context [SEP] question and choice [SEP]`. Question and choice keep their LAST
  `max_qa_length` pieces, the context is cut at its end to fit.

  Args:
    splits: "train", "eval", "test" → questions; those that are not needed may be absent.
    tokenizer: of the pretrained model.
    max_seq_length: S.
    max_qa_length: most pieces of question and choice.
    name: for people and file names.
    data: what the questions were read from, by flag.

  Raises:
    UserError: questions differ in their number of choices.

  Reference: the original's `race_utils`.
  """

  best_metric = "accuracy"

  def __init__(
    self,
    *,
    splits: Mapping[str, Sequence[ChoiceExample]],
    tokenizer: AlbertTokenizer,
    max_seq_length: int,
    max_qa_length: int,
    name: str = "race",
    data: Mapping[str, str] | None = None,
  ):
    self.data = dict(data or {})
    self.splits = splits
    self._tokenizer = tokenizer
    counts = {len(example.choices): example for split in splits.values() for example in split}
    if len(counts) != 1:
      received = ", ".join(f"{count} in {example.example_id}" for count, example in counts.items())
      raise UserError(
        f"All questions have the same number of choices. Received: {received or 'no question'}. Add or drop choices, "
        "or make two data sets."
      )
    self.names = [letter(index) for index in range(*counts)]
    self.spec = TaskSpec(
      kind="multiple_choice",
      name=name,
      pair=True,
      max_seq_length=max_seq_length,
      max_qa_length=max_qa_length,
    )

  def features(self, split: str) -> FeatureSet:
    examples: Sequence[ChoiceExample] = self.split(split)
    unlabelled = next((example for example in examples if example.label is None), None)
    if unlabelled is not None and split != "test":
      raise UserError(
        f"Every {split} question has its right choice. Received: none in {unlabelled.example_id}. "
        "Add the labels, or predict alone with --do_predict."
      )
    rows = pack_choices(
      examples,
      self._tokenizer,
      max_seq_length=self.spec.max_seq_length,
      max_qa_length=self.spec.max_qa_length,
    )
    features = FeatureSet(rows, None if unlabelled is not None else self.gold(split))
    full = (features.lengths == self.spec.max_seq_length).sum()
    logging.info("%s: %d questions, %d fill or exceed --max_seq_length", split, len(rows), full)
    return features

  def gold(self, split: str) -> np.ndarray:
    """The index of the right choice, `[n]`."""
    return np.array([example.label for example in self.splits[split]], np.int32)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`accuracy`, `accuracy_GROUP` of each group, as RACE's "middle" and "high", and the mean `loss`."""
    labels = self.gold(split)
    right = self.predictions(outputs) == labels
    groups = np.array([example.group for example in self.splits[split]])
    scores = {"accuracy": float(np.mean(right))}
    for group in sorted(set(groups) - {""}):
      scores[f"accuracy_{group}"] = float(np.mean(right[groups == group]))
    return scores | {"loss": float(cross_entropy(outputs[UNNAMED_OUTPUT], labels).mean())}

  def columns(self, split: str) -> Mapping[str, Sequence[str]]:
    examples = self.splits[split]
    return {
      "id": [example.example_id for example in examples],
      "label": ["" if example.label is None else self.names[example.label] for example in examples],
      "group": [example.group for example in examples],
    }

  def examples(self, split: str) -> Iterable[str]:
    return map(repr, self.splits[split])


def pack_choices(
  examples: Sequence[ChoiceExample], tokenizer: AlbertTokenizer, *, max_seq_length: int, max_qa_length: int
) -> PackedRows:
  """The rows of each question's choices, `[C, s]`, packed by the ops that a SavedModel has in its graph."""
  with tf.device(coordinator_cpu()):  # Its tables too: a slice's first host could not give them to us.
    graph = GraphTokenizer(tokenizer)
  smallest = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
  ids: list[np.ndarray] = []
  lengths: list[np.ndarray] = []
  second: list[np.ndarray] = []
  blocks = [
    examples[begin : begin + _QUESTIONS_AT_ONCE] for begin in range(0, len(examples), _QUESTIONS_AT_ONCE)
  ]
  for block in track(blocks, len(blocks), desc="Tokenizing", unit=f"x {_QUESTIONS_AT_ONCE} questions"):
    with tf.device(coordinator_cpu()):
      batch = choice_batch(
        graph,
        *(
          tf.constant([getattr(each, name) for each in block]) for name in ("context", "question", "choices")
        ),
        max_length=max_seq_length,
        max_qa_length=max_qa_length,
        pad_to_max_length=False,
      )
    sizes = batch["input_mask"].numpy().sum(axis=-1)  # [questions, C]
    lengths += list(sizes)
    second += list(sizes - batch["segment_ids"].numpy().sum(axis=-1))
    rows = zip(batch["input_ids"].numpy().astype(smallest), sizes.max(axis=-1), strict=True)
    ids += [row[:, :size].copy() for row, size in rows]
  return PackedRows(ids, lengths, second)
