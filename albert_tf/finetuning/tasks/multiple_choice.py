"""Multiple choice as a fine-tuning task, with rows as in the original's RACE."""

from collections.abc import Mapping, Sequence
import string

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.choices import ChoiceExample
from albert_tf.finetuning.tasks.labelled import ClassLabels, LabelledTask, named_metrics
from albert_tf.tokenization import Tokenizer


def multiple_choice_task(
  splits: Mapping[str, Sequence[ChoiceExample]],
  *,
  tokenizer: Tokenizer,
  max_seq_length: int,
  max_qa_length: int,
  name: str = "race",
  choice_names: Sequence[str] = string.ascii_uppercase,
  sources: Mapping[str, str] | None = None,
) -> LabelledTask:
  """Makes the task of questions; the metric is the share of right answers.

  Each choice has a row: `[CLS] context [SEP] question and choice [SEP]`. Question and choice keep
  their LAST `max_qa_length` tokens; the context is cut at its end.

  Args:
    splits: "train", "eval", "test" → questions; splits that are not needed may be absent.
    tokenizer: tokenizer of the pretrained model.
    max_seq_length: S.
    max_qa_length: largest number of tokens of question and choice.
    name: name in messages and file names.
    choice_names: labels of the choices, in order.
    sources: see `FineTuningTask`.

  Raises:
    UserError: questions have different numbers of choices.

  Reference: the original's `race_utils`.
  """
  # A batch is [B, C, S], so C is the same everywhere. Number of choices → an example for messages.
  counts = {}
  for examples in splits.values():
    for example in examples:
      counts[len(example.choices)] = example.id
  if len(counts) != 1 or max(counts) > len(choice_names):
    received = ", ".join(
      f"{count} in the question {example_id}" for count, example_id in counts.items()
    )
    raise UserError(
      "All questions have the same number of choices, and a name for each. Received: "
      f"{received or 'no question'}. Add or drop choices, or set --choice_names."
    )
  spec = TaskSpec(
    kind="multiple_choice",
    name=name,
    pair=True,
    max_seq_length=max_seq_length,
    max_qa_length=max_qa_length,
  )
  return LabelledTask(
    spec,
    splits,
    tokenizer=tokenizer,
    labels=ClassLabels(choice_names[: max(counts)], has_f1=False),
    metrics=named_metrics("accuracy"),
    sources=sources,
  )
