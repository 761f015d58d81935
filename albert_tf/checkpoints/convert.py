"""Conversion of a checkpoint from one format to another."""

import dataclasses
import os

import numpy as np

from albert_tf import files, json_files
from albert_tf.checkpoints import bundle, fast_tokenizer, huggingface
from albert_tf.checkpoints.checkpoint import Checkpoint, MatchReport, match, read_checkpoint
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.configs.task import TaskSpec, default_length
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
  names = checkpoint.variables.keys()
  heads = tuple(head for head in ALL_HEADS if names & head_names(head))
  report = match(
    checkpoint.variables,
    {entry.name: entry.shape for entry in variable_entries(checkpoint.config, heads)},
    allow_missing=options.allow_unmatched,
    allow_unused=options.allow_unmatched,
    source=checkpoint.path,
  )

  # The state of an optimizer belongs to the variables as they are, in a format that has it.
  slots = checkpoint.slots
  dropped = list(checkpoint.dropped)
  if options.output_format == "huggingface" or options.expand_sharing:
    dropped += [(name, "optimizer state") for name in slots]
    slots = {}
  config = checkpoint.config
  variables = {name: checkpoint.variables[name] for name in report.matched}
  if options.expand_sharing:
    variables = expand_sharing(config, variables)
    config = dataclasses.replace(config, sharing="none", num_hidden_groups=1)
  converted = dataclasses.replace(checkpoint, config=config, variables=variables, slots=slots)

  # A fine-tuned run keeps its task: labels, lengths, thresholds.
  task = TaskSpec.find(checkpoint.directory)
  with files.atomic_directory(output_path) as directory:
    if task is not None:
      task.save(directory)
    if options.output_format == "huggingface":
      huggingface.write_directory(directory, variables, config, heads, task)
      _write_huggingface_extras(directory, converted, task)
    else:
      _write_tensorflow(directory, converted, is_original=options.output_format == "tf1")
  return dataclasses.replace(report, dropped=dropped, heads=heads)


def _write_tensorflow(directory: str, checkpoint: Checkpoint, *, is_original: bool) -> None:
  """Writes a run directory, or with `is_original` the files of the original release."""
  prefix = f"checkpoints/model.ckpt-{checkpoint.global_step}"
  values = checkpoint.config.to_dict()
  if is_original:
    prefix = "model.ckpt-best"
    values = checkpoint.config.to_original_dict()
  prefix = os.path.join(directory, prefix)
  files.makedirs(os.path.dirname(prefix))
  # The type that TensorFlow 1 gives its step.
  step = {"global_step": np.array(checkpoint.global_step, np.int64)}
  bundle.write_bundle(prefix, dict(checkpoint.variables) | dict(checkpoint.slots) | step)
  json_files.write(os.path.join(directory, "albert_config.json"), dict(sorted(values.items())))

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
  max_length = default_length(checkpoint.config, task)
  if task is not None and task.kind == "sentence_vectors":
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
