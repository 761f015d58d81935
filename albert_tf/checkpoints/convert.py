"""Conversion of a checkpoint from one format to another."""

from collections.abc import Mapping
import dataclasses
import json
import os

import numpy as np

from albert_tf import files, json_files
from albert_tf.checkpoints import bundle, fast_tokenizer, huggingface
from albert_tf.checkpoints.checkpoint import Checkpoint, read_checkpoint
from albert_tf.checkpoints.load import MatchReport, match
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling.name_map import ALL_HEADS, expand_sharing, head_names, variable_entries
from albert_tf.tokenization.config import (
  CONFIG_FILE,
  HUGGING_FACE_MODEL,
  MODEL_FILE,
  RELEASED_MODEL,
  VOCABULARY_FILE,
  WordPieceConfig,
  vocabulary_bytes,
)


def convert(input_path: str, output_path: str, options: ConvertOptions) -> MatchReport:
  """Converts a checkpoint; on an error there is no output directory.

  Args:
    input_path: see `read_checkpoint`.
    output_path: a directory that does not exist or is empty.
    options: format, configuration, vocabulary, and variables that may be missing.

  Returns:
    The outcome for every variable.

  Raises:
    UserError: the input does not fit; no partial output remains.
  """
  # Mistakes first: reading a large checkpoint takes minutes.
  files.check_new(output_path)
  checkpoint = read_checkpoint(
    input_path, config_file=options.config_file, vocabulary_file=options.spm_model_file
  )
  if checkpoint.tokenizer is not None:
    checkpoint.load_tokenizer()  # Another vocabulary is refused now.

  # A head is converted whole: one of its variables asks for all.
  heads = []
  for head in ALL_HEADS:
    if any(name in checkpoint.variables for name in head_names(head)):
      heads.append(head)
  report = match(
    checkpoint.variables,
    {entry.name: entry.shape for entry in variable_entries(checkpoint.config, heads)},
    allow_missing=options.allow_missing,
    allow_unused=options.allow_unused,
    source=checkpoint.path,
  )

  # The state of an optimizer belongs to the variables as they are, in a format that has it.
  slots = checkpoint.slots
  dropped = checkpoint.dropped
  if options.output_format == "huggingface" or options.expand_sharing:
    dropped += tuple((name, "optimizer state") for name in slots)
    slots = {}
  config, variables = _resolve_sharing(
    checkpoint.config, {name: checkpoint.variables[name] for name in report.matched}, options
  )
  converted = dataclasses.replace(checkpoint, config=config, variables=variables, slots=slots)

  # A fine-tuned run keeps its task: labels, lengths, thresholds.
  task = TaskSpec.find(checkpoint.directory)
  with files.atomic_directory(output_path) as directory:
    if task is not None:
      task.save(directory)
    if options.output_format == "huggingface":
      huggingface.write_directory(directory, variables, config, tuple(heads), task)
      _write_huggingface_extras(directory, converted, task)
    else:
      _write_tensorflow(directory, converted, is_original=options.output_format == "tf1")
  return dataclasses.replace(report, dropped=dropped, heads=tuple(heads))


def _resolve_sharing(
  config: AlbertConfig, variables: Mapping[str, np.ndarray], options: ConvertOptions
) -> tuple[AlbertConfig, Mapping[str, np.ndarray]]:
  """Expresses the sharing as the format can: this project's takes all kinds.

  The others have "none" as one group for each layer, and no partial sharing.
  """
  if options.expand_sharing:
    variables = expand_sharing(config, variables)
    config = dataclasses.replace(config, sharing="none", num_hidden_groups=1)
  if options.output_format == "albert_tf":
    return config, variables
  if config.sharing in ("attention", "ffn"):
    raise UserError(
      "Only this project's format shares only attention or feed-forward. "
      f"Received: sharing={config.sharing!r} for --output_format={options.output_format}. "
      "Add --expand_sharing: every layer gets its own copy, and the model computes the same."
    )
  # With 12 layers, 12 groups of one layer: nothing is shared.
  if config.sharing == "none":
    groups = config.num_hidden_layers
    config = dataclasses.replace(config, sharing="all", num_hidden_groups=groups)
  return config, variables


def _write_tensorflow(directory: str, checkpoint: Checkpoint, *, is_original: bool) -> None:
  """Writes a run directory, or with `is_original` the files of the original release."""
  prefix = f"checkpoints/model.ckpt-{checkpoint.global_step}"
  text = checkpoint.config.to_json_string()
  if is_original:
    prefix = "model.ckpt-best"
    text = json.dumps(checkpoint.config.to_original_dict(), indent=2, sort_keys=True) + "\n"
  prefix = os.path.join(directory, prefix)
  files.makedirs(os.path.dirname(prefix))
  # The type that TensorFlow 1 gives its step.
  step = {"global_step": np.array(checkpoint.global_step, np.int64)}
  bundle.write_bundle(prefix, dict(checkpoint.variables) | dict(checkpoint.slots) | step)
  files.write_text(os.path.join(directory, "albert_config.json"), text)

  if checkpoint.tokenizer is None:
    return
  path, settings = checkpoint.tokenizer
  name = MODEL_FILE
  if isinstance(settings, WordPieceConfig):
    name = VOCABULARY_FILE
  elif is_original and os.path.basename(path) == RELEASED_MODEL:
    name = RELEASED_MODEL  # Another vocabulary must not go by that name.
  files.write_bytes(os.path.join(directory, name), vocabulary_bytes(path))
  json_files.write(os.path.join(directory, CONFIG_FILE), settings.to_dict())


def _write_huggingface_extras(
  directory: str, checkpoint: Checkpoint, task: TaskSpec | None
) -> None:
  """Adds the tokenizer, and what sentence-transformers reads."""
  # Their pipelines cut texts to the length of the training.
  max_length = checkpoint.config.max_position_embeddings
  if task is not None:
    max_length = min(max_length, task.max_seq_length)
    if task.kind == "sentence_vectors":
      huggingface.write_sentence_modules(directory, checkpoint.config, task)
  if checkpoint.tokenizer is None:
    return

  path, settings = checkpoint.tokenizer
  vocabulary = vocabulary_bytes(path)
  if isinstance(settings, WordPieceConfig):
    name = VOCABULARY_FILE
    values = {
      "tokenizer_class": "BertTokenizer",
      "do_lower_case": settings.do_lower_case,
      "strip_accents": settings.strip_accents,
      "model_max_length": max_length,
    }
  else:
    name = HUGGING_FACE_MODEL
    # The class that takes tokenizer.json as it is; their ALBERT class would put its own rules in
    # their place.
    tokenizer_class = "PreTrainedTokenizerFast"
    fast = fast_tokenizer.tokenizer_json(vocabulary, settings)
    if fast is None:
      tokenizer_class = "AlbertTokenizer"
    else:
      files.write_text(os.path.join(directory, "tokenizer.json"), fast)
    values = fast_tokenizer.tokenizer_config(
      settings, tokenizer_class=tokenizer_class, max_length=max_length
    )
  files.write_bytes(os.path.join(directory, name), vocabulary)
  json_files.write(os.path.join(directory, "tokenizer_config.json"), values)
