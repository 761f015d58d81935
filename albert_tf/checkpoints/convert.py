"""Conversion of a checkpoint from one format to another."""

from collections.abc import Mapping
import dataclasses
import json
import math
import os

import numpy as np

from albert_tf import files, json_files
from albert_tf.checkpoints import bundle, fast_tokenizer, huggingface
from albert_tf.checkpoints.checkpoint import Checkpoint, read_checkpoint
from albert_tf.checkpoints.load import MatchReport, match
from albert_tf.checkpoints.name_map import (
  encoder_entries,
  expand_sharing,
  head_entries,
  heads_present,
)
from albert_tf.configs import AlbertConfig
from albert_tf.configs.conversion import ConvertOptions
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.tokenization.config import (
  HUGGING_FACE_MODEL,
  MODEL_FILE,
  RELEASED_MODEL,
  VOCABULARY_FILE,
  TokenizerConfig,
  WordPieceConfig,
  find_tokenizer,
  vocabulary_bytes,
)

# Keys of the original's JSON that it reads only with --init_from_group0.
_ORIGINAL_UNUSED = {
  "down_scale_factor": 1,
  "gap_size": 0,
  "net_structure_type": 0,
  "num_memory_blocks": 0,
}


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
  files.check_new(output_path)
  checkpoint = read_checkpoint(input_path, config_file=options.config_file)
  if options.spm_model_file:
    checkpoint = dataclasses.replace(checkpoint, tokenizer=find_tokenizer(options.spm_model_file))
  if checkpoint.tokenizer is not None:
    checkpoint.load_tokenizer()  # Another vocabulary is refused now.
  heads = heads_present(checkpoint.config, checkpoint.variables)
  report = match(
    checkpoint.variables,
    encoder_entries(checkpoint.config)
    + [entry for head in heads for entry in head_entries(checkpoint.config, head)],
    allow_missing=options.allow_missing,
    allow_unused=options.allow_unused,
    source=checkpoint.path,
  )
  keeps_slots = options.output_format != "huggingface" and not options.expand_sharing
  slots = checkpoint.slots if keeps_slots else {}
  dropped = [(name, "optimizer state") for name in checkpoint.slots if not keeps_slots]
  report = dataclasses.replace(report, dropped=(*checkpoint.dropped, *dropped), heads=tuple(heads))
  config, variables = _unshare(
    checkpoint.config, {name: checkpoint.variables[name] for name in report.matched}, options
  )
  task = TaskSpec.find(checkpoint.directory)
  with files.atomic_directory(output_path) as directory:
    if task:
      task.save(directory)
    if options.output_format == "huggingface":
      huggingface.write_directory(directory, variables, config, task)
      if task and task.kind == "sentence_vectors":
        huggingface.write_sentence_modules(directory, config, task)
      longest = min(task.max_seq_length if task else math.inf, config.max_position_embeddings)
      _write_tokenizer(
        directory, checkpoint.tokenizer, name=HUGGING_FACE_MODEL, max_length=int(longest)
      )
    else:
      tensors = {**variables, **slots, "global_step": np.array(checkpoint.global_step, np.int64)}
      _write_tensorflow(
        directory, checkpoint, config, tensors, is_original=options.output_format == "tf1"
      )
  return report


def _unshare(
  config: AlbertConfig, variables: Mapping[str, np.ndarray], options: ConvertOptions
) -> tuple[AlbertConfig, Mapping[str, np.ndarray]]:
  """Converts the sharing for a format: "none" to one group for each layer; partial sharing needs --expand_sharing."""
  if options.expand_sharing:
    variables = expand_sharing(config, variables)
    config = config.replace(sharing="none", num_hidden_groups=1)
  if options.output_format == "albert_tf":
    return config, variables
  if config.sharing in ("attention", "ffn"):
    raise UserError(
      f"Only this project's format shares only attention or feed-forward. Received: sharing={config.sharing!r} for "
      f"--output_format={options.output_format}. Add --expand_sharing: every layer gets its own copy, and "
      "the model computes the same."
    )
  if config.sharing == "none":
    config = config.replace(sharing="all", num_hidden_groups=config.num_hidden_layers)
  return config, variables


def _write_tensorflow(
  directory: str,
  checkpoint: Checkpoint,
  config: AlbertConfig,
  tensors: Mapping[str, np.ndarray],
  *,
  is_original: bool,
) -> None:
  prefix, text, name = (
    f"checkpoints/model.ckpt-{checkpoint.global_step}",
    config.to_json_string(),
    MODEL_FILE,
  )
  if is_original:
    prefix = "model.ckpt-best"
    text = json.dumps(original_config_dict(config), indent=2, sort_keys=True) + "\n"
    if checkpoint.tokenizer and os.path.basename(checkpoint.tokenizer[0]) == RELEASED_MODEL:
      name = RELEASED_MODEL
  files.makedirs(os.path.dirname(os.path.join(directory, prefix)))
  bundle.write_bundle(os.path.join(directory, prefix), tensors)
  _write_tokenizer(directory, checkpoint.tokenizer, name=name)
  files.write_text(os.path.join(directory, "albert_config.json"), text)


def original_config_dict(config: AlbertConfig) -> dict[str, object]:
  """The configuration in the format of the original's `albert_config.json`.

  Raises:
    UserError: the original code would compute a different function with this configuration.
  """
  values = config.to_dict()
  if values.pop("layer_norm_eps") != 1e-12 or config.hidden_act == "gelu_exact":
    raise UserError(
      "The original code computes the tanh form of GELU and LayerNorm with epsilon 1e-12, whatever its "
      "configuration says. "
      f"Received: hidden_act={config.hidden_act!r}, layer_norm_eps={config.layer_norm_eps}. "
      "Keep this model in the format of this project or of Hugging Face."
    )
  del values["sharing"]  # "all": `_unshare` has resolved the others.
  return {**values, **_ORIGINAL_UNUSED}


def _write_tokenizer(
  directory: str,
  tokenizer: tuple[str, TokenizerConfig | WordPieceConfig] | None,
  *,
  name: str,
  max_length: int = 0,
) -> None:
  if tokenizer is None:
    return
  path, settings = tokenizer
  is_wordpiece = isinstance(settings, WordPieceConfig)
  vocabulary = vocabulary_bytes(path)
  with files.atomic_writer(
    os.path.join(directory, VOCABULARY_FILE if is_wordpiece else name)
  ) as stream:
    stream.write(vocabulary)
  if name != HUGGING_FACE_MODEL:
    json_files.write(os.path.join(directory, "tokenizer.json"), settings.to_dict())
    return
  if isinstance(settings, WordPieceConfig):
    values = {
      "tokenizer_class": "BertTokenizer",
      "do_lower_case": settings.do_lower_case,
      "strip_accents": settings.strip_accents,
      "model_max_length": max_length,
    }
    text = json.dumps(values, indent=2) + "\n"
  else:
    fast = fast_tokenizer.tokenizer_json(vocabulary, settings)
    if fast is not None:
      files.write_text(os.path.join(directory, "tokenizer.json"), fast)
    # The class that takes tokenizer.json as it is; their ALBERT class would put its own rules in their place.
    tokenizer_class = "AlbertTokenizer" if fast is None else "PreTrainedTokenizerFast"
    text = fast_tokenizer.tokenizer_config_json(
      settings, tokenizer_class=tokenizer_class, max_length=max_length
    )
  files.write_text(os.path.join(directory, "tokenizer_config.json"), text)
