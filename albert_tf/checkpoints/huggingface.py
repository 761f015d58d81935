"""Hugging Face's ALBERT: reading its tensors, and writing directories that its libraries load."""

import math
import os

import numpy as np
from safetensors import SafetensorError
import safetensors.numpy

from albert_tf import files, json_files
from albert_tf.checkpoints.bundle import Arrays
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TASK_KINDS, TaskSpec, huggingface_labels
from albert_tf.errors import UserError
from albert_tf.modeling.name_map import ALL_HEADS, variable_entries

SAFETENSORS_FILE = "model.safetensors"

# Tables of constants that older versions saved with the weights.
_BUFFERS = ("albert.embeddings.position_ids", "albert.embeddings.token_type_ids")
# Copies of a tensor under a second name, which must say the same.
_TIED = {
  "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
  "predictions.decoder.bias": "predictions.bias",
}
# The map from E to H, which a model of this project has only where they differ.
_MAPPING_WEIGHT = "albert.encoder.embedding_hidden_mapping_in.weight"
_MAPPING_BIAS = "albert.encoder.embedding_hidden_mapping_in.bias"
# How names begin in the file of a bare encoder, which lacks `albert.`.
_ENCODER_PREFIXES = ("embeddings.", "encoder.", "pooler.")
# The heads of a model → its class; a model of any other heads is read as an encoder.
_ARCHITECTURES = {
  ("masked_lm", "sentence_order"): "AlbertForPreTraining",
  ("masked_lm",): "AlbertForMaskedLM",
  ("classifier",): "AlbertForSequenceClassification",
  ("span",): "AlbertForQuestionAnswering",
}
# The front matter is for Hugging Face's hub.
_MODEL_CARD = """\
---
license: unknown
library_name: transformers
pipeline_tag: {hub_task}
tags: [albert]
---

# {title}

[ALBERT](https://arxiv.org/abs/1909.11942): {num_parameters:,} parameters, {num_layers} layers,
H = {width}, a vocabulary of {vocab_size:,} tokens.

Before you publish the model, write its licence above. Write here who trained it, on which text, in
which languages, what it is for, and where it is known to be wrong.
"""


def read_tensors(path: str) -> Arrays:
  """Reads every tensor of a `.safetensors` file, by name.

  Raises:
    UserError: the file is damaged.
  """
  try:
    with files.local_copy(path) as local:
      return dict(safetensors.numpy.load_file(local))
  except (SafetensorError, OSError, ValueError) as error:
    reason = str(error).splitlines()[0]
    raise UserError(
      f"A weights file must be complete and undamaged. Received: {path} ({reason}). Copy it again."
    ) from error


def to_original(
  tensors: Arrays, config: AlbertConfig, *, source: str
) -> tuple[Arrays, list[tuple[str, str]]]:
  """Renames and transposes Hugging Face's tensors to the original's.

  Args:
    tensors: name → array, as stored; a bare encoder's names may lack `albert.`.
    config: the architecture.
    source: name of the file in messages.

  Returns:
    (original name → array, where unknown names do not change; [(name, why it was left out)]).
  """
  # Names as they are today, whatever the version that wrote them.
  tensors = {_full_name(name): value for name, value in tensors.items()}
  if "predictions.decoder.bias" in tensors:
    tensors.setdefault("predictions.bias", tensors["predictions.decoder.bias"])

  # What the original does not have.
  dropped = {name: "a table of constants" for name in _BUFFERS if name in tensors}
  for copy, name in _TIED.items():
    if copy not in tensors:
      continue
    if name in tensors and not np.array_equal(tensors[copy], tensors[name]):
      raise UserError(
        f"The masked-LM decoder of an ALBERT is tied: {copy} must equal {name}. "
        f"Received: different values in {source}. "
        "This model has an untied decoder, which this project's ALBERT cannot hold."
      )
    dropped[copy] = f"tied to {name}"
  if config.embedding_size == config.hidden_size and (
    _MAPPING_WEIGHT in tensors or _MAPPING_BIAS in tensors
  ):
    _check_identity(tensors, source)
    dropped[_MAPPING_WEIGHT] = "the identity, since E equals H"
    dropped[_MAPPING_BIAS] = "the identity, since E equals H"

  original = {entry.huggingface: entry.name for entry in variable_entries(config, ALL_HEADS)}
  variables = {}
  for name, value in tensors.items():
    if name not in dropped:
      original_name = original.get(name, name)
      variables[original_name] = _transpose_kernel(original_name, value)
  return variables, list(dropped.items())


def _full_name(name: str) -> str:
  if name.startswith(_ENCODER_PREFIXES):
    return f"albert.{name}"
  return name


def _transpose_kernel(original_name: str, value: np.ndarray) -> np.ndarray:
  """A `kernel` is `[in, out]`, Hugging Face's `weight` is `[out, in]`."""
  if original_name.endswith("/kernel"):
    return np.ascontiguousarray(value.T)
  return value


def _check_identity(tensors: Arrays, source: str) -> None:
  """Raises `UserError` unless the mapping from E to H = E, which is left out, is the identity."""
  weight = tensors.get(_MAPPING_WEIGHT)
  bias = tensors.get(_MAPPING_BIAS)
  if weight is not None and bias is not None:
    # Its own size may differ from the configuration's.
    identity = np.eye(math.isqrt(weight.size))
    if np.array_equal(weight, identity) and not bias.any():
      return
  raise UserError(
    "A model with embedding_size equal to hidden_size has no mapping between them. Received: "
    f"{_MAPPING_WEIGHT} in {source}, which is not the identity. Give the model another "
    "embedding_size, or fold the mapping into its embeddings where that is possible; leaving it "
    "out would change every output."
  )


def _from_original(variables: Arrays, config: AlbertConfig) -> Arrays:
  """The reverse of `to_original`. Tied copies are left out, as in Hugging Face's own files."""
  huggingface = {entry.name: entry.huggingface for entry in variable_entries(config, ALL_HEADS)}
  tensors = {}
  for name, value in variables.items():
    tensors[huggingface[name]] = _transpose_kernel(name, value)
  # Hugging Face's model has the mapping always, and would give a missing one random values.
  if config.embedding_size == config.hidden_size:
    tensors[_MAPPING_WEIGHT] = np.eye(config.hidden_size, dtype=np.float32)
    tensors[_MAPPING_BIAS] = np.zeros(config.hidden_size, np.float32)
  return tensors


def write_directory(
  directory: str,
  variables: Arrays,
  config: AlbertConfig,
  heads: tuple[str, ...] = (),
  task: TaskSpec | None = None,
) -> None:
  """Writes `config.json`, the weights and a card; `AutoModel.from_pretrained(directory)` loads them.

  Args:
    directory: an existing local directory.
    variables: original name → array, each a variable of `name_map`.
    config: the architecture.
    heads: the heads that the variables belong to.
    task: the task of a fine-tuned model; None: labels are numbers.
  """
  # The class, and the labels that it counts its outputs by.
  values = config.to_huggingface_dict()
  values["architectures"] = [_ARCHITECTURES.get(heads, "AlbertModel")]
  if "classifier" in heads:
    num_labels = len(variables["output_bias"])
    if num_labels != 2:  # 2 is their default.
      labels = [f"LABEL_{number}" for number in range(num_labels)]
      values |= huggingface_labels(labels)
  if task is not None:
    values |= task.to_huggingface_dict()
  json_files.write(os.path.join(directory, "config.json"), dict(sorted(values.items())))

  safetensors.numpy.save_file(
    _from_original(variables, config),
    os.path.join(directory, SAFETENSORS_FILE),
    metadata={"format": "pt"},
  )
  _write_model_card(directory, config, heads, task)


def _write_model_card(
  directory: str, config: AlbertConfig, heads: tuple[str, ...], task: TaskSpec | None
) -> None:
  """Writes `README.md`, which whoever publishes the model completes."""
  title = "ALBERT"
  hub_task = "fill-mask" if "masked_lm" in heads else "feature-extraction"
  if task is not None:
    title = f"ALBERT for {task.name}"
    hub_task = TASK_KINDS[task.kind].hub
  card = _MODEL_CARD.format(
    title=title,
    hub_task=hub_task,
    num_parameters=config.param_count(),
    num_layers=config.num_hidden_layers,
    width=config.hidden_size,
    vocab_size=config.vocab_size,
  )
  files.write_text(os.path.join(directory, "README.md"), card)


def write_sentence_modules(directory: str, config: AlbertConfig, task: TaskSpec) -> None:
  """Adds the files with which `SentenceTransformer(directory)` loads a written directory."""
  # A module's folder holds its settings; the Transformer's are those of the model itself.
  folders = {"Transformer": "", "Pooling": "1_Pooling"}
  if task.normalize:
    folders["Normalize"] = "2_Normalize"
  modules = []
  for number, (name, folder) in enumerate(folders.items()):
    module_type = f"sentence_transformers.models.{name}"
    modules.append({"idx": number, "name": str(number), "path": folder, "type": module_type})
    files.makedirs(os.path.join(directory, folder))
  pooling = {
    "word_embedding_dimension": config.hidden_size,
    "pooling_mode_mean_tokens": task.pooling == "mean",
    "pooling_mode_cls_token": task.pooling == "cls",
    "pooling_mode_max_tokens": False,
  }
  # Their Transformer lower-cases before the tokenizer if it is told to; ours does it itself.
  transformer = {"max_seq_length": task.max_seq_length, "do_lower_case": False}
  json_files.write(os.path.join(directory, "modules.json"), modules)
  json_files.write(os.path.join(directory, "1_Pooling", "config.json"), pooling)
  json_files.write(os.path.join(directory, "sentence_bert_config.json"), transformer)
