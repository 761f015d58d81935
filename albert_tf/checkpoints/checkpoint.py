"""`Checkpoint`: weights under the original's names, with configuration and tokenizer.

`read_checkpoint` finds and reads one of any format. `load_weights` gives a model the weights of one,
and reports every variable; conversion compares them with `match`. `from_pretrained`, fine-tuning and
warm starts load with them.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files, tokenization
from albert_tf.checkpoints import bundle, huggingface
from albert_tf.checkpoints.bundle import Arrays
from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.configs.task import best_run
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.modeling.name_map import ALL_HEADS, head_names, variable_entries
from albert_tf.tokenization import Tokenizer, TokenizerConfig
from albert_tf.tokenization.config import WordPieceConfig, find_tokenizer, find_vocabulary

# Adam's moments of a weight: "bert/pooler/dense/kernel/adam_m".
_SLOT = re.compile(r"^(?P<name>.+)/(adam_m|adam_v)$")
# `module/` or `module_N/`, which names have in graphs with a TF-Hub module.
_MODULE_PREFIX = re.compile(r"^module(_\d+)?/")
_FINETUNED_NAMES = [name for head in ALL_HEADS if head not in HEADS for name in head_names(head)]
# For `allow_unused` and `allow_missing` when a pretrained model becomes a fine-tuned one.
PRETRAINING_HEADS = r"^cls/(predictions|seq_relationship)/"
FINETUNED_HEADS = f"^({'|'.join(_FINETUNED_NAMES)})$"
ANY_HEAD = f"{PRETRAINING_HEADS}|{FINETUNED_HEADS}"
POOLER = "^bert/pooler/"
# Names listed in a message before "and N more".
_MOST_NAMES = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
  """The content of a checkpoint directory.

  Args:
    config: the architecture.
    variables: original name → float32 array; unknown ones have their own names.
    slots: `<name>/adam_m` and `<name>/adam_v`, if there are any.
    global_step: the step, 0 if none is recorded.
    tokenizer: (path of the SentencePiece model or WordPiece vocabulary, its settings), or None.
    dropped: (name, reason) of each tensor left out on purpose.
    path: the file, or the prefix of the files, that the weights were read from.
    directory: the folder of the configuration and, for a fine-tuned run, task.json.
  """

  config: AlbertConfig
  variables: Arrays
  slots: Arrays = dataclasses.field(default_factory=dict)
  global_step: int = 0
  tokenizer: tuple[str, TokenizerConfig | WordPieceConfig] | None = None
  dropped: Sequence[tuple[str, str]] = ()
  # Both are empty for weights that were not read from files.
  path: str = ""
  directory: str = ""

  def load_tokenizer(self) -> Tokenizer:
    """Loads the tokenizer of the weights.

    Raises:
      UserError: there is none, or its vocabulary size is not the model's.
    """
    if self.tokenizer is None:
      raise UserError(
        f"The weights need the tokenizer they were trained with. Received: {self.path} without a "
        "vocabulary next to its configuration. Put it there as spm.model or, of WordPiece, as "
        "vocab.txt; or join them with convert_checkpoint.py --spm_model_file."
      )
    path, _ = self.tokenizer
    tokenizer = tokenization.load_tokenizer(path)
    if tokenizer.vocab_size != self.config.vocab_size:
      raise UserError(
        f"Tokenizer and model must have one vocabulary. Received: {path} with "
        f"{tokenizer.vocab_size} tokens for a model of {self.config.vocab_size}. Give the "
        "vocabulary that the weights were trained with."
      )
    return tokenizer


# ------------------------------------------------------------------ from files


def read_checkpoint(
  path: files.Path, *, config_file: str = "", vocabulary_file: str = ""
) -> Checkpoint:
  """Reads a checkpoint of any known format.

  Args:
    path: a run directory, a released directory, a SavedModel, a Hugging Face directory, a weights
      file, or the prefix of a TensorFlow checkpoint (a known suffix such as `.index` is ignored).
    config_file: the configuration; empty: the one in the folder of the weights.
    vocabulary_file: a SentencePiece model or WordPiece vocabulary; empty: that beside the
      configuration, if there is one.

  Returns:
    The checkpoint, with variables under the original's names; `match` checks that they fit a model.

  Raises:
    UserError: nothing is there, it is damaged, or a weight is not finite.
  """
  location = find_checkpoint(path)
  is_huggingface = location.endswith(".safetensors")
  config_path = config_file or _find_config(location, is_huggingface)
  folder = os.path.dirname(config_path)
  config = AlbertConfig.from_json_file(config_path, huggingface=is_huggingface or None)

  # Tensors are weights, state of the optimizer, or neither.
  slots: Arrays = {}
  global_step = 0
  if is_huggingface:
    tensors = huggingface.read_tensors(location)
    variables, dropped = huggingface.to_original(tensors, config, source=location)
  else:
    tensors = _without_module_prefix(bundle.read_bundle(location), location)
    global_step = int(tensors.pop("global_step", 0))
    variables = {}
    dropped = []
    for name, value in tensors.items():
      slot = _SLOT.match(name)
      if slot and slot["name"] in tensors:
        slots[name] = value
      elif name.startswith(bundle.HOST_PREFIX):
        dropped.append((name, "training state of a run, not a weight"))
      else:
        variables[name] = value

  # Shapes come first: a wrong configuration explains all that follows.
  _check_encoder(config, variables, location)
  variables = {name: _as_float32(name, value, location) for name, value in variables.items()}
  bundle.check_finite(variables, location)
  # A vocabulary is optional here: whoever needs one calls `load_tokenizer`, which then complains.
  tokenizer = None
  if vocabulary_file or find_vocabulary(folder):
    tokenizer = find_tokenizer(vocabulary_file or folder)
  return Checkpoint(
    config=config,
    variables=variables,
    slots=slots,
    global_step=global_step,
    tokenizer=tokenizer,
    dropped=dropped,
    path=location,
    directory=folder or ".",
  )


def find_checkpoint(path: files.Path) -> str:
  """Finds the weights file or bundle prefix.

  Of a run it is the best or else the latest, of several runs that of the best run.
  """
  path = files.text_of(path)
  if path.endswith(".safetensors") and files.exists(path):
    return path
  prefix = bundle.strip_suffix(path)
  if files.exists(f"{prefix}.index"):
    return prefix
  if not files.isdir(path):
    reason = (
      "does not exist. Check the path; names of hubs are not downloaded: fetch the files, and name "
      "their folder"
    )
    if files.exists(path):
      reason = (
        "is another file. Name its folder, unpack an archive, and load a .keras file with "
        "keras.saving.load_model"
      )
    raise UserError(
      "A checkpoint must be a directory, a weights file or the prefix of a .index file. "
      f"Received: {path!r}, which {reason}."
    )

  # A directory of TensorFlow, of Hugging Face, or of a run.
  if files.exists(os.path.join(path, "saved_model.pb")):
    return os.path.join(path, "variables", "variables")
  safetensors = os.path.join(path, huggingface.SAFETENSORS_FILE)
  if files.exists(safetensors):
    return safetensors
  # The best comes before the latest, as its evaluation was better.
  for folder in ("checkpoints/best", "checkpoints", ""):
    run_prefix = bundle.latest_bundle(os.path.join(best_run(path), folder))
    if run_prefix is not None:
      return run_prefix
  content = ", ".join(files.listdir(path)[:6]) or "nothing"
  raise UserError(
    "A checkpoint directory must hold model.ckpt-*.index, saved_model.pb, model.safetensors or a "
    f"run's checkpoints/. Received: {path}, which holds {content}. Name the folder of a run, of "
    "the original release, of a TF-Hub module or of Hugging Face's files."
  )


def _find_config(weights: str, is_huggingface: bool) -> str:
  """Finds the configuration file in the folder of the weights, or up to two folders above."""
  # Modules of TensorFlow Hub have the file among their assets.
  own_names = ("albert_config.json", "assets/albert_config.json")
  names = ("config.json",) if is_huggingface else own_names
  # Of run/checkpoints/best/model.ckpt-8 it is in run/.
  for parent in ("", "..", "../.."):
    for name in names:
      candidate = files.abspath(os.path.join(os.path.dirname(weights), parent, name))
      if files.exists(candidate):
        return candidate
  raise UserError(
    f"A checkpoint needs its configuration. Received: {weights} without {names[0]} next to it. "
    "Put the file there, or join them with convert_checkpoint.py --albert_config_file."
  )


def _without_module_prefix(tensors: Arrays, source: str) -> Arrays:
  # Two modules would come to have the same names.
  renamed = {_MODULE_PREFIX.sub("", name): value for name, value in tensors.items()}
  if len(renamed) != len(tensors):
    raise UserError(
      f"A checkpoint must hold one model. Received: {source} with module/ and module_1/."
    )
  return renamed


def _check_encoder(config: AlbertConfig, variables: Arrays, source: str) -> None:
  """Raises `UserError` if the shapes contradict the configuration, before a model is built."""
  entries = variable_entries(config)
  missing = []
  for entry in entries:
    if entry.name in variables:
      check_shape(entry.name, variables[entry.name].shape, entry.shape, source)
    else:
      missing.append(entry.name)
  # Single ones are for `match`, which knows what may be missing.
  if 2 * len(missing) > len(entries):
    raise UserError(
      f"A checkpoint must hold what its configuration names. Received: {source}, missing: "
      f"{missing[0]} and {len(missing) - 1} others of {len(entries)}. Give the configuration this "
      "checkpoint was made with."
    )


def check_shape(
  name: str, shape: Sequence[int], expected: Sequence[int | None], source: str
) -> None:
  """Raises `UserError` for a variable of another shape; None means any size."""
  if not tf.TensorShape(expected).is_compatible_with(shape):
    raise UserError(
      f"{name} must have the shape its configuration says, {list(expected)}. "
      f"Received: {list(shape)} in {source}. Give the configuration this checkpoint was made with."
    )


def _as_float32(name: str, value: np.ndarray, source: str) -> np.ndarray:
  """Converts float16 and bfloat16 to float32, which is exact; refuses other types."""
  if value.dtype == np.float32:
    return value
  if value.dtype.name in ("float16", "bfloat16"):
    return value.astype(np.float32)
  raise UserError(
    f"Weights must be float32, float16 or bfloat16. Received: {name} of {value.dtype} in {source}."
  )


# ------------------------------------------------------------------ into a model


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchReport:
  """The outcome for every variable, under the original's name or else its own.

  `dropped` are variables that are never loaded (optimizer slots, tied copies, …), with the reason.
  """

  matched: Sequence[str]
  missing: Sequence[str]
  unused: Sequence[str]
  dropped: Sequence[tuple[str, str]] = ()
  heads: Sequence[str] = ()

  def lines(self) -> list[str]:
    """One line for each variable, and for each reason why some were left out; then a summary."""
    # The surprises first.
    lines = [f"{name}  missing" for name in self.missing]
    lines += [f"{name}  unused" for name in self.unused]
    lines += [f"{name}  matched" for name in self.matched]
    reasons = collections.Counter(reason for _, reason in self.dropped)
    lines += [f"{count} left out: {reason}" for reason, count in reasons.items()]
    lines.append(
      f"{len(self.matched)} variables matched, {len(self.missing)} missing, "
      f"{len(self.unused)} unused, {len(self.dropped)} left out; "
      f"heads: {', '.join(self.heads) or 'none'}"
    )
    return lines


def load_weights(
  model: Any,
  checkpoint: str | Checkpoint | Mapping[str, np.ndarray],
  *,
  allow_missing: str = "",
  allow_unused: str = "",
  source: str = "",
) -> MatchReport:
  """Assigns a checkpoint's weights to a model's variables by the original's names.

  Args:
    model: a model of this project, or a mapping of original name → variable.
    checkpoint: a path (see `read_checkpoint`), a `Checkpoint`, or original name → array.
    allow_missing: regular expression of variables of the model that may keep their values; empty:
      none.
    allow_unused: regular expression of variables of the checkpoint that may remain unused; empty:
      none.
    source: name of a mapping in messages.

  Returns:
    The outcome for every variable.

  Raises:
    UserError: a name or a shape does not fit; then no variable has been changed.

  Example:
    >>> load_weights(encoder, "albert_base_v2/", allow_unused=PRETRAINING_HEADS)
  """
  if isinstance(checkpoint, str):
    checkpoint = read_checkpoint(checkpoint)
  if isinstance(checkpoint, Checkpoint):
    source = checkpoint.path
    checkpoint = checkpoint.variables
  variables = model if isinstance(model, Mapping) else named_variables(model)
  # All are compared before the first is assigned.
  report = match(
    checkpoint,
    {name: tuple(variable.shape) for name, variable in variables.items()},
    allow_missing=allow_missing,
    allow_unused=allow_unused,
    source=source,
  )
  for name in report.matched:
    variables[name].assign(checkpoint[name])
  return report


def match(
  tensors: Mapping[str, np.ndarray],
  expected: Mapping[str, Sequence[int | None]],
  *,
  allow_missing: str = "",
  allow_unused: str = "",
  source: str,
) -> MatchReport:
  """Compares the variables of a checkpoint and of a model; see `load_weights`.

  Args:
    expected: original name → shape, with None for a size that the checkpoint decides.

  Raises:
    UserError: a shape differs, or a name is missing or unused and not allowed to be.
  """
  # In the model's order, except what only the checkpoint has.
  matched = [name for name in expected if name in tensors]
  missing = [name for name in expected if name not in tensors]
  unused = [name for name in tensors if name not in expected]
  # A wrong shape is told first: it explains most missing names.
  for name in matched:
    check_shape(name, tensors[name].shape, expected[name], source)
  _refuse_unless_allowed(
    missing,
    allow_missing,
    rule=f"Every variable the model needs must be in the checkpoint. Received: {source}, missing",
    argument="allow_missing",
  )
  _refuse_unless_allowed(
    unused,
    allow_unused,
    rule=f"Every variable of the checkpoint must be one the model uses. Received: {source}, unused",
    argument="allow_unused",
  )
  return MatchReport(matched=matched, missing=missing, unused=unused)


def _refuse_unless_allowed(names: Sequence[str], allowed: str, *, rule: str, argument: str) -> None:
  """Raises `UserError` if there are names that the regular expression `allowed` does not find."""
  refused = [name for name in names if not (allowed and re.search(allowed, name))]
  if not refused:
    return
  listed = ", ".join(refused[:_MOST_NAMES])
  if len(refused) > _MOST_NAMES:
    listed += f", and {len(refused) - _MOST_NAMES} more"
  raise UserError(
    f"{rule}: {listed}. Give the configuration that it was made with and, to continue a run, its "
    "optimizer. If it is meant, convert_checkpoint.py takes --allow_unmatched=REGEX, and "
    f"load_weights {argument}=REGEX."
  )
