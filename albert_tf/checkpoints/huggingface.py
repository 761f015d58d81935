"""Hugging Face's ALBERT: its tensor names and its files."""

from collections.abc import Mapping
import math
import os

import numpy as np
from safetensors import SafetensorError
import safetensors.numpy

from albert_tf import files, json_files
from albert_tf.checkpoints.name_map import (
  HEADS,
  Entry,
  encoder_entries,
  head_entries,
  heads_present,
)
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError

SAFETENSORS_FILE = "model.safetensors"

# Tables of constants that older versions saved with the weights.
_BUFFERS = ("albert.embeddings.position_ids", "albert.embeddings.token_type_ids")
# Copies of a tensor under a second name, which must say the same.
_TIED = {
  "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
  "predictions.decoder.bias": "predictions.bias",
}
_MAPPING = (
  "albert.encoder.embedding_hidden_mapping_in"  # This project has it only where E and H differ.
)
_ENCODER_PARTS = ("embeddings.", "encoder.", "pooler.")
_ARCHITECTURES = {
  ("masked_lm", "sentence_order"): "AlbertForPreTraining",
  ("masked_lm",): "AlbertForMaskedLM",
  ("classifier",): "AlbertForSequenceClassification",
  ("span",): "AlbertForQuestionAnswering",
}


def read_tensors(path: str) -> dict[str, np.ndarray]:
  """Reads every tensor of a `.safetensors` file, by name.

  Raises:
    UserError: the file is damaged.
  """
  try:
    with files.local_copy(path) as local:
      return dict(safetensors.numpy.load_file(local))
  except (SafetensorError, OSError, ValueError) as error:
    raise UserError(
      f"A weights file must be complete and undamaged. Received: {path} ({str(error).splitlines()[0]}). Copy it again."
    ) from error


def to_original(
  tensors: Mapping[str, np.ndarray], config: AlbertConfig, *, source: str
) -> tuple[dict[str, np.ndarray], list[tuple[str, str]]]:
  """Renames and transposes Hugging Face's tensors to the original's.

  Args:
    tensors: name → array, as stored; a bare encoder's names may lack `albert.`.
    config: the architecture.
    source: name of the file in messages.

  Returns:
    (original name → array, where unknown names do not change; [(name, why it was left out)]).
  """
  tensors = {
    f"albert.{n}" if n.startswith(_ENCODER_PARTS) else n: value for n, value in tensors.items()
  }
  dropped = [(name, "a table of constants") for name in _BUFFERS if name in tensors]
  if "predictions.decoder.bias" in tensors and "predictions.bias" not in tensors:
    tensors["predictions.bias"] = tensors["predictions.decoder.bias"]
  for copy, name in _TIED.items():
    if copy in tensors:
      if name in tensors and not np.array_equal(tensors[copy], tensors[name]):
        raise UserError(
          f"The masked-LM decoder of an ALBERT is tied: {copy} must equal {name}. "
          f"Received: different values in {source}. "
          "This model has an untied decoder, which this project's ALBERT cannot hold."
        )
      dropped.append((copy, f"tied to {name}"))
  if config.embedding_size == config.hidden_size:
    dropped += _identity_mapping(tensors, source)
  by_name = {entry.huggingface: entry for entry in _all_entries(config)}
  left_out = {name for name, _ in dropped}
  variables = {}
  for name, value in tensors.items():
    if name not in left_out:
      entry = by_name.get(name)
      variables[entry.name if entry else name] = _transpose(entry, value)
  return variables, dropped


def _identity_mapping(tensors: Mapping[str, np.ndarray], source: str) -> list[tuple[str, str]]:
  """Names of the mapping from E to H = E, which must be the identity and is left out."""
  weight, bias = tensors.get(f"{_MAPPING}.weight"), tensors.get(f"{_MAPPING}.bias")
  if weight is None and bias is None:
    return []
  # Its own size may differ from the configuration's.
  identity = np.eye(math.isqrt(getattr(weight, "size", 0)))
  if weight is None or bias is None or not np.array_equal(weight, identity) or bias.any():
    raise UserError(
      "A model with embedding_size equal to hidden_size has no mapping between them. Received: "
      f"{_MAPPING} in {source}, which is not the identity. Give the model another embedding_size, or fold the "
      "mapping into its embeddings where that is possible; leaving it out would change every output."
    )
  return [(f"{_MAPPING}.{part}", "the identity, since E equals H") for part in ("weight", "bias")]


def from_original(
  variables: Mapping[str, np.ndarray], config: AlbertConfig
) -> dict[str, np.ndarray]:
  """The reverse of `to_original`. Tied copies are left out, as in Hugging Face's own files.

  If E = H, it adds an identity mapping from E to H: Hugging Face would give a missing one random values.

  Raises:
    UserError: a variable has no Hugging Face name.
  """
  entries = {entry.name: entry for entry in _all_entries(config)}
  unknown = [name for name in variables if name not in entries]
  if unknown:
    raise UserError(
      f"Every variable must have a name in Hugging Face's ALBERT. Received: {', '.join(unknown)}. "
      "Leave them out, or keep the checkpoint in this project's format."
    )
  tensors = {
    entries[name].huggingface: _transpose(entries[name], value) for name, value in variables.items()
  }
  if config.embedding_size == config.hidden_size:
    size = config.hidden_size
    tensors |= {
      f"{_MAPPING}.weight": np.eye(size, dtype=np.float32),
      f"{_MAPPING}.bias": np.zeros(size, np.float32),
    }
  return tensors


def write_directory(
  directory: str,
  variables: Mapping[str, np.ndarray],
  config: AlbertConfig,
  task: TaskSpec | None = None,
) -> None:
  """Writes `config.json` and the weights; `AutoModel.from_pretrained(directory)` loads them.

  Args:
    directory: an existing local directory.
    variables: original name → array.
    config: the architecture.
    task: the task of a fine-tuned model; None: labels are numbers.
  """
  tensors = from_original(variables, config)
  values = config.to_huggingface_dict()
  heads = tuple(heads_present(config, variables))
  values["architectures"] = [_ARCHITECTURES.get(heads, "AlbertModel")]
  if "classifier" in heads and len(variables["output_bias"]) != 2:  # 2 is their default.
    labels = [f"LABEL_{i}" for i in range(len(variables["output_bias"]))]
    values["id2label"] = {str(i): label for i, label in enumerate(labels)}
    values["label2id"] = {label: i for i, label in enumerate(labels)}
  values |= task.to_huggingface_dict() if task else {}
  safetensors.numpy.save_file(
    tensors, os.path.join(directory, SAFETENSORS_FILE), metadata={"format": "pt"}
  )
  json_files.write(os.path.join(directory, "config.json"), dict(sorted(values.items())))


def write_sentence_modules(directory: str, config: AlbertConfig, task: TaskSpec) -> None:
  """Adds the files with which `SentenceTransformer(directory)` loads a written directory."""
  paths = {"Transformer": "", "Pooling": "1_Pooling"} | (
    {"Normalize": "2_Normalize"} if task.normalize else {}
  )
  kind = "sentence_transformers.models."
  modules = [
    {"idx": i, "name": str(i), "path": path, "type": kind + name}
    for i, (name, path) in enumerate(paths.items())
  ]
  modes = {
    "mean_tokens": task.pooling == "mean",
    "cls_token": task.pooling == "cls",
    "max_tokens": False,
  }
  pooling = {f"pooling_mode_{mode}": value for mode, value in modes.items()}
  for path in filter(None, paths.values()):
    files.makedirs(os.path.join(directory, path))
  for name, values in {
    "modules.json": modules,
    "1_Pooling/config.json": {"word_embedding_dimension": config.hidden_size, **pooling},
    "sentence_bert_config.json": {"max_seq_length": task.max_seq_length, "do_lower_case": False},
  }.items():
    json_files.write(os.path.join(directory, name), values)


def _all_entries(config: AlbertConfig) -> list[Entry]:
  return encoder_entries(config) + [entry for head in HEADS for entry in head_entries(config, head)]


def _transpose(entry: Entry | None, value: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(value.T) if entry is not None and entry.transposed else value
