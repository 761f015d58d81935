"""A run directory becomes a SavedModel in TensorFlow Serving's layout: `<output_dir>/<version>/`."""

import os
import tempfile
from typing import Any
import uuid

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertEncoder, AlbertForPreTraining, named_variables
from albert_tf.serving.modules import EncoderModule, FillMaskModule, ServingModule
from albert_tf.serving.run_directory import CONFIG_NAME, PretrainedFiles, find_pretrained
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.training.checkpoints import restore_variables

MODEL_KINDS = ("encoder", "fill_mask")


def export_saved_model(
  *, model: str, init_checkpoint: str, output_dir: str, version: int = 1, top_k: int = 10
) -> str:
  """Exports a trained model with its tokenizer and configuration.

  The weights, the SentencePiece model, tokenizer.json and albert_config.json all
  travel in the SavedModel; nothing else is needed to use it. It is written under
  a name that servers ignore and renamed when whole.

  Args:
    model: one of `MODEL_KINDS`.
    init_checkpoint: run directory or checkpoint prefix; see `find_pretrained`.
    output_dir: the folder that servers watch.
    version: the version's number; servers take the highest.
    top_k: answers a mask that `fill_mask` gives.

  Returns:
    The path of the version's directory.

  Raises:
    UserError: the checkpoint does not fit, or the version is there already.
  """
  if model not in MODEL_KINDS:
    raise UserError(f"model must be one of {', '.join(MODEL_KINDS)}. Received: {model!r}.")
  target = os.path.join(output_dir, str(version))
  if files.exists(target):
    raise UserError(
      f"A version is exported once and never changed. Received: {target}, which exists. "
      "Choose a higher --version, or remove the directory."
    )
  pretrained = find_pretrained(init_checkpoint)
  tokenizer = pretrained.load_tokenizer()
  _check_top_k(top_k, tokenizer)
  built = restore_model(model, pretrained)
  files.makedirs(output_dir)
  with tempfile.TemporaryDirectory() as assets_dir:
    assets = _write_assets(assets_dir, pretrained, tokenizer)
    module = _make_module(model, built, pretrained, tokenizer, top_k=top_k, assets=assets)
    _save_atomically(module, target)
  return target


def restore_model(kind: str, pretrained: PretrainedFiles) -> Any:
  """Builds the Keras model that `kind` needs, with the checkpoint's weights."""
  built = (AlbertEncoder if kind == "encoder" else AlbertForPreTraining)(pretrained.config)
  restore_variables(named_variables(built), pretrained.checkpoint)
  return built


def _make_module(
  kind: str,
  built: Any,
  pretrained: PretrainedFiles,
  tokenizer: AlbertTokenizer,
  *,
  top_k: int,
  assets: list[str],
) -> ServingModule:
  if kind == "encoder":
    return EncoderModule(built, pretrained.config, tokenizer=tokenizer, asset_files=assets)
  return FillMaskModule(built, pretrained.config, tokenizer=tokenizer, top_k=top_k, asset_files=assets)


def _write_assets(directory: str, pretrained: PretrainedFiles, tokenizer: AlbertTokenizer) -> list[str]:
  tokenizer.save_pretrained(directory)
  with files.atomic_writer(os.path.join(directory, CONFIG_NAME), "w") as stream:
    stream.write(pretrained.config.to_json_string())
  return [os.path.join(directory, name) for name in sorted(os.listdir(directory))]


def _save_atomically(module: ServingModule, target: str) -> None:
  # Servers take directories whose name is a number, so the unfinished one has another.
  temporary = os.path.join(os.path.dirname(target), f".tmp-{os.path.basename(target)}-{uuid.uuid4().hex[:8]}")
  signatures = {name: function.get_concrete_function() for name, function in module.signatures().items()}
  try:
    tf.saved_model.save(module, temporary, signatures=signatures)
    files.rename(temporary, target)
  except BaseException:
    if files.exists(temporary):
      files.remove(temporary)
    raise


def _check_top_k(top_k: int, tokenizer: AlbertTokenizer) -> None:
  if not 1 <= top_k <= tokenizer.vocab_size - 5:
    raise UserError(
      f"top_k must be between 1 and the number of ordinary pieces. Received: {top_k}, with "
      f"{tokenizer.vocab_size} pieces of which 5 are special."
    )
