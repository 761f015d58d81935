"""A GLUE task for the engine, with GLUE's submission files."""

import os

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning import glue
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.task import Outputs
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.finetuning.text_task import TextTask
from albert_tf.tokenization import AlbertTokenizer, WordPieceTokenizer

SUBMISSION_FOLDER = "submission"


class GlueTextTask(TextTask):
  """A task of GLUE.

  Args:
    name: such as "mrpc"; see `glue.TASKS`.
    data_dir: the task's own folder, or the one that holds GLUE's folders.
    tokenizer: of the weights.
    max_seq_length: S; the paper has 512, 128 is enough for all of GLUE but RTE and QNLI.

  Raises:
    UserError: unknown task, missing files or columns.

  Reference: Wang et al. 2019, arXiv 1804.07461.
  """

  def __init__(
    self,
    name: str,
    *,
    data_dir: str,
    tokenizer: AlbertTokenizer | WordPieceTokenizer,
    max_seq_length: int = 512,
  ):
    self.glue = glue.find_task(name)
    spec = TaskSpec(
      kind="classification" if self.glue.label_names else "regression",
      # The diagnostic set is predicted with MNLI's model.
      name="mnli" if self.glue.name == "ax" else self.glue.name,
      label_names=self.glue.label_names,
      pair=len(self.glue.texts) > 1,
      max_seq_length=max_seq_length,
    )
    super().__init__(
      spec,
      glue.read_splits(self.glue, data_dir),
      tokenizer=tokenizer,
      metric_names=self.glue.metrics,
      data={"data_dir": data_dir},
    )
    if self.glue.name == "ax":
      self._splits = {"test": self._splits["test"]}

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Also GLUE's own `submission/<name>.tsv` for test splits."""
    super().write_predictions(outputs, split, directory)
    if split.startswith("test"):
      name = self.glue.submission.get(split, self.glue.folder)
      self._write_submission(outputs, split, os.path.join(directory, SUBMISSION_FOLDER), name)

  def _write_submission(self, outputs: Outputs, split: str, directory: str, name: str) -> None:
    predictions = self.predictions(outputs)
    if self.spec.kind == "regression":
      predictions = np.clip(predictions, 0.0, 5.0)  # STS-B's scale; GLUE refuses others.
    files.makedirs(directory)
    with files.atomic_writer(os.path.join(directory, f"{name}.tsv"), "w") as stream:
      stream.write("index\tprediction\n")
      for example, prediction in zip(self._splits[split].ids, predictions, strict=True):
        stream.write(f"{example}\t{self.label_text(prediction)}\n")

  def train_features(self) -> FeatureSet:
    if self.glue.name == "ax":
      raise UserError(
        "GLUE's diagnostic set AX has no training data. Received: --do_train with --task_name=ax. Train mnli, and "
        "predict AX with --init_checkpoint=<its output_dir> --do_predict."
      )
    return super().train_features()
