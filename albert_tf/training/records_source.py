"""What the record files say about themselves, against what the command says about them."""

from collections.abc import Sequence
import dataclasses
import os

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, find_manifest
from albert_tf.tokenization import AlbertTokenizer

# Lengths of records that carry no manifest: the original release's defaults.
_DEFAULT_SEQ_LENGTH, _DEFAULT_PREDICTIONS = 512, 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsSource:
  """What training needs to know of its records.

  Attributes:
    manifest: of the records, or None for records made elsewhere.
    vocab_size: pieces of their vocabulary, or None if nothing tells.
    max_seq_length, max_predictions_per_seq: lengths.
    tokenizer_path: SentencePiece model or directory with one; empty if there is none.
    directory: where the first file lies.
  """

  manifest: Manifest | None
  vocab_size: int | None
  max_seq_length: int
  max_predictions_per_seq: int
  tokenizer_path: str
  directory: str

  def baselines(self) -> dict[str, float]:
    """Held-out metrics of a model that ignores its input, as far as the manifest tells."""
    baseline = self.manifest.baseline if self.manifest else None
    if baseline is None or baseline.eval_share is None:
      return {}
    return {"masked_lm_accuracy": baseline.eval_share}

  def check_vocab_size(self, vocab_size: int) -> None:
    """Refuses a model with another vocabulary.

    Raises:
      UserError: the sizes differ.
    """
    if self.vocab_size is not None and vocab_size != self.vocab_size:
      raise UserError(
        "The model and its records must have the same vocabulary. Received: vocab_size="
        f"{vocab_size} in the model's configuration, {self.vocab_size} in {self.directory}. "
        "Correct the configuration, or make the records again with the model's vocabulary."
      )


def describe_records(
  paths: Sequence[str],
  eval_paths: Sequence[str],
  *,
  spm_model_file: str,
  max_seq_length: int | None,
  max_predictions_per_seq: int | None,
) -> RecordsSource:
  """Reads the manifests beside the files and checks them against the command.

  Args:
    paths, eval_paths: training and held-out files.
    spm_model_file: the vocabulary the command names; empty for the one beside the records.
    max_seq_length, max_predictions_per_seq: what the command asks for; None takes the manifest's.

  Raises:
    UserError: command and records contradict each other, or train and held-out records do.
  """
  directory = os.path.dirname(paths[0])
  manifest = find_manifest(paths)
  tokenizer_path = spm_model_file or (directory if files.exists(os.path.join(directory, "spm.model")) else "")
  tokenizer = AlbertTokenizer.from_pretrained(tokenizer_path) if tokenizer_path else None
  asked = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
  if manifest is None:
    return RecordsSource(
      manifest=None,
      vocab_size=tokenizer.vocab_size if tokenizer else None,
      max_seq_length=max_seq_length or _DEFAULT_SEQ_LENGTH,
      max_predictions_per_seq=max_predictions_per_seq or _DEFAULT_PREDICTIONS,
      tokenizer_path=tokenizer_path,
      directory=directory,
    )
  manifest.check(**asked, vocab_sha256=tokenizer.model_sha256 if tokenizer else None, source=directory)
  eval_manifest = find_manifest(eval_paths) if eval_paths else None
  if eval_manifest is not None:
    eval_manifest.check(
      vocab_sha256=manifest.vocab_sha256,
      max_seq_length=manifest.max_seq_length,
      max_predictions_per_seq=manifest.max_predictions_per_seq,
      source=os.path.dirname(eval_paths[0]),
    )
  return RecordsSource(
    manifest=manifest,
    vocab_size=manifest.vocab_size,
    max_seq_length=manifest.max_seq_length,
    max_predictions_per_seq=manifest.max_predictions_per_seq,
    tokenizer_path=tokenizer_path,
    directory=directory,
  )
