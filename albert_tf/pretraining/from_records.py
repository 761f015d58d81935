"""The settings of a run on records: lengths, vocabulary, sentence task and masks come from them."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any

from albert_tf import files
from albert_tf.configs import ModelChoice
from albert_tf.errors import UserError
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.settings import PretrainingSettings, StepConfig, TrainingRecords
from albert_tf.records import Manifest, find_manifests
from albert_tf.records.manifest import SentenceTask, check_agreement
from albert_tf.records.masking import MaskingConfig, ngram_probabilities, predictions_of_share
from albert_tf.records.parse import spec_of_records
from albert_tf.tokenization import Tokenizer, load_tokenizer
from albert_tf.tokenization.config import find_vocabulary

# Of records without a manifest: the default of the original release.
_MASKED_LM_PROB = 0.15


def settings_from_records(
  records: TrainingRecords,
  *,
  model: ModelChoice,
  optimizer: OptimizerConfig,
  step: StepConfig,
  **options: Any,
) -> PretrainingSettings:
  """The settings of a run; what records and choices say twice must agree.

  Args:
    records: the files, and what is learned from them.
    model: its vocabulary size may be left to the records.
    step: its sentence task becomes that of the records.
    **options: `output_dir` and other fields of `RunOptions`, and `distribution`.

  Raises:
    UserError: files are missing, or records, vocabulary and model do not fit together.

  Example:
    settings = settings_from_records(
      TrainingRecords(input_file="records/train-*", eval_input_file="records/eval-*"),
      model=ModelChoice(size="tiny"),
      optimizer=OptimizerConfig(learning_rate=0.003, num_train_steps=20_000, num_warmup_steps=2_000),
      step=StepConfig(global_batch_size=64),
      output_dir="run",
    )
    result = run_pretraining(settings)
  """
  described = describe_records(records)
  config = model.config(described.vocab_size)
  described.check_vocab_size(config.vocab_size)
  # Evaluation keeps the stored masks, so that its numbers stay comparable.
  masking = None
  if records.masking == "fresh":
    masking = described.masking(records.masked_lm_prob)
  sentence_task = described.trained_sentence_task(records.sentence_loss)
  return PretrainingSettings(
    input_files=described.input_files,
    eval_input_files=described.eval_input_files,
    model=config,
    optimizer=optimizer,
    step=dataclasses.replace(step, sentence_task=sentence_task),
    max_seq_length=described.max_seq_length,
    max_predictions_per_seq=described.max_predictions_per_seq,
    masking=masking,
    tokenizer_path=described.tokenizer_path,
    **options,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsDescription:
  """What the files of a run and their manifests say.

  Attributes:
    input_files, eval_input_files: training and held-out files, expanded and sorted.
    vocab_size: size of their vocabulary; None if unknown.
    tokenizer_path, vocab_sha256: a vocabulary or a directory with one, and its hash; empty if there
      is none.
    made_with: directory → settings that its training records were made with; empty if unknown.
    sentence_task: meaning of their labels, see `StepConfig`; by default the task of the original
      release.
  """

  input_files: tuple[str, ...]
  eval_input_files: tuple[str, ...]
  vocab_size: int | None
  max_seq_length: int
  max_predictions_per_seq: int
  tokenizer_path: str
  vocab_sha256: str
  made_with: Mapping[str, Mapping[str, Any]]
  sentence_task: SentenceTask = "sentence_order"

  def trained_sentence_task(self, sentence_loss: str) -> SentenceTask:
    """The sentence task of a run: "auto": the records' task; "off": none; "on": any labels."""
    if sentence_loss == "off":
      return ""
    if sentence_loss == "on" and not self.sentence_task:
      return "sentence_order"
    return self.sentence_task

  def masking(self, masked_lm_prob: float | None) -> MaskingConfig:
    """Fresh masks by the rules of the stored masks.

    A share that is given has as many predictions as it takes. None is the stored share, with the
    stored number of predictions.
    """
    if masked_lm_prob is None:
      share = self._common_setting("masked_lm_prob", _MASKED_LM_PROB)
      predictions = self.max_predictions_per_seq
    else:
      share = masked_lm_prob
      predictions = predictions_of_share(share, self.max_seq_length)
    ngrams = ngram_probabilities(
      self._common_setting("ngram", 3), self._common_setting("ngram_distribution", "inverse")
    )
    return MaskingConfig(
      masked_lm_prob=share,
      max_predictions_per_seq=predictions,
      ngram_probabilities=tuple(ngrams.tolist()),
      whole_word=self._common_setting("whole_word", "original"),
      redraw_order=self._labels_mean_swapped(),
      vocab_sha256=self.vocab_sha256,
    )

  def _labels_mean_swapped(self) -> bool:
    """Whether label 1 means two swapped segments in all training records.

    Then the order is drawn again, too.
    """
    for settings in self.made_with.values():
      is_original = settings.get("compatibility", "none") != "none"  # Mixes in random documents.
      if settings.get("sentence_pair") != "sop" or is_original:
        return False
    return True

  def _common_setting(self, name: str, default: Any) -> Any:
    """A setting that must be the same for all training records."""
    values = {
      directory: settings.get(name, default) for directory, settings in self.made_with.items()
    }
    different = set(values.values())
    if len(different) > 1:
      received = ", ".join(f"{value} in {directory}" for directory, value in values.items())
      raise UserError(
        f"Fresh masks need records that were masked by one rule. Received: {name} {received}. Use "
        "records that were masked alike, or train on the stored masks with --masking=stored."
      )
    return different.pop()

  def check_vocab_size(self, vocab_size: int) -> None:
    """Raises `UserError` for a model with another vocabulary size."""
    if self.vocab_size is not None and vocab_size != self.vocab_size:
      raise UserError(
        "The model and its records must have the same vocabulary. Received: vocab_size="
        f"{vocab_size} in the model's configuration, {self.vocab_size} in the records. "
        "Correct the configuration, or make the records again with the model's vocabulary."
      )


def describe_records(records: TrainingRecords) -> RecordsDescription:
  """Reads the manifests of all files, and checks them against each other and the given lengths."""
  paths = files.expand_globs(records.input_file, name="--input_file")
  eval_paths: list[str] = []
  if records.eval_input_file:
    eval_paths = files.expand_globs(records.eval_input_file, name="--eval_input_file")

  directory = os.path.dirname(paths[0])
  manifests = find_manifests(paths)
  tokenizer_path, tokenizer = _tokenizer_of(
    records.spm_model_file, directory or ".", is_ours=bool(manifests)
  )
  vocab_sha256 = "" if tokenizer is None else tokenizer.model_sha256
  if not manifests:  # Records of the original release.
    spec = spec_of_records(paths)
    return RecordsDescription(
      input_files=tuple(paths),
      eval_input_files=tuple(eval_paths),
      vocab_size=None if tokenizer is None else tokenizer.vocab_size,
      max_seq_length=records.max_seq_length or spec.max_seq_length,
      max_predictions_per_seq=records.max_predictions_per_seq or spec.max_predictions_per_seq,
      tokenizer_path=tokenizer_path,
      vocab_sha256=vocab_sha256,
      made_with={directory: {}},
    )

  # Training and held-out records must be of one model, and no file may be both.
  _check_no_held_out(paths, manifests)
  check_agreement(manifests | find_manifests(eval_paths))
  manifest = manifests[directory]
  manifest.check(
    vocab_sha256=vocab_sha256 or None,
    max_seq_length=records.max_seq_length,
    max_predictions_per_seq=records.max_predictions_per_seq,
    source=directory,
  )
  return RecordsDescription(
    input_files=tuple(paths),
    eval_input_files=tuple(eval_paths),
    vocab_size=manifest.vocab_size,
    max_seq_length=manifest.max_seq_length,
    max_predictions_per_seq=manifest.max_predictions_per_seq,
    tokenizer_path=tokenizer_path,
    vocab_sha256=vocab_sha256,
    sentence_task=manifest.sentence_task,
    made_with={folder: of_folder.settings for folder, of_folder in manifests.items()},
  )


def _check_no_held_out(paths: Sequence[str], manifests: Mapping[str, Manifest]) -> None:
  """Raises `UserError` if a training file is a held-out one.

  A pattern for all files of a folder would name both.
  """
  training_files = set(paths)
  for directory, manifest in manifests.items():
    for file in manifest.files_of("eval"):
      path = os.path.join(directory, file.name)
      if path in training_files:
        raise UserError(
          f"Held-out records must not be trained. Received: --input_file with {path}, which its "
          "manifest.json lists as eval. Name the training files only, such as "
          "--input_file='records/train-*'."
        )


def _tokenizer_of(named: str, folder: str, *, is_ours: bool) -> tuple[str, Tokenizer | None]:
  """Path and tokenizer: from the records' folder, which has the normalization, or the named file.

  Next to records of other programs only `spm.model` counts: other files may belong to something
  else.
  """
  # Records of the original release may lie in a folder with any other text files.
  if is_ours:
    is_there = bool(find_vocabulary(folder))
  else:
    is_there = files.exists(os.path.join(folder, "spm.model"))
  of_records = load_tokenizer(folder) if is_there else None
  if not named:
    return ("", None) if of_records is None else (folder, of_records)

  tokenizer = load_tokenizer(named)
  # The same model, named twice: the folder also says how the text was normalized.
  is_same = of_records is not None and of_records.model_sha256 == tokenizer.model_sha256
  if is_ours and is_same:
    return folder, of_records
  return named, tokenizer
