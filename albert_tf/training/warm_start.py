"""The weights a new run starts from: those of a checkpoint, perhaps of a model of another depth."""

from collections.abc import Mapping
import os
import re

import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import FINETUNED_HEADS, Checkpoint, find_checkpoint, read_checkpoint
from albert_tf.checkpoints.restore import assign_exactly, restore_variables
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling import initialize_variables
from albert_tf.tokenization import load_tokenizer

# What no variable's name or shape tells, and what decides which layer uses which variables.
_FUNCTION_FIELDS = ("num_attention_heads", "hidden_act", "layer_norm_eps")
_SHARING_FIELDS = ("sharing", "num_hidden_groups", "inner_group_num")
_CONFIG_NAMES = ("albert_config.json", os.path.join("assets", "albert_config.json"))
# What may be new, in words → what its variables begin with. Hugging Face's masked-LM models have no pooler.
_HEADS = {
  "the masked-LM head": "cls/predictions/",
  "the sentence-order head": "cls/seq_relationship/",
  "the pooler": "bert/pooler/",
}


def warm_start(
  variables: Mapping[str, tf.Variable],
  config: AlbertConfig,
  checkpoint: str,
  *,
  seed: int,
  tokenizer_path: str = "",
) -> str:
  """Gives a model the weights of a checkpoint, every one accounted for; returns in words where they are from.

  The checkpoint may be a run, of the original release, of TF-Hub or of Hugging Face. A head of pretraining that it
  has nothing of starts anew, with the initial values of `seed`: masked LM; sentence order, and the pooler, which
  nothing else reads. A head of fine-tuning is left out. All else must be there.

  A model of another depth may take them where layers share whole blocks (`sharing="all"`): they are the same
  variables at any depth. With groups, both must have the same number, and group g gives to group g.

  Args:
    variables: checkpoint name → variable, of a model of `config`.
    config: the model's.
    checkpoint: see `interop.read_checkpoint`.
    seed: of the initial values of new heads.
    tokenizer_path: the vocabulary of the records; empty: it is not compared.

  Raises:
    UserError: a weight on one side only or of another shape; or, where the checkpoint's configuration or vocabulary
      lies beside it, weights that would mean something else here, or layers that would have none.

  Reference: ALBERT table 11, whose deeper models start from the one before.
  """
  kind, path = find_checkpoint(checkpoint)
  if kind != "huggingface" and _config_beside(path) is None:
    restore_variables(variables, path)
    return f"starting from the weights of {path}"
  source = read_checkpoint(checkpoint)
  _check(source.config, config, path)
  _check_vocabulary(source, tokenizer_path)
  weights = {n: value for n, value in source.variables.items() if not re.search(FINETUNED_HEADS, n)}
  heads = [head for head in _HEADS if not any(name.startswith(_HEADS[head]) for name in weights)]
  new = {n: v for n, v in variables.items() if any(n.startswith(_HEADS[head]) for head in heads)}
  assign_exactly({n: v for n, v in variables.items() if n not in new}, weights, source=path)
  initialize_variables(new, seed=seed, initializer_range=config.initializer_range)
  said = f"starting from the weights of {path}"
  if heads:
    said += f"; {' and '.join(heads)} not in it: new, of seed {seed}"
  if source.config.num_hidden_layers != config.num_hidden_layers:
    said += f", of {source.config.num_hidden_layers} layers; here {config.num_hidden_layers} share them"
  return said


def _check_vocabulary(source: Checkpoint, tokenizer_path: str) -> None:
  if source.tokenizer is None or not tokenizer_path:
    return
  own, records = (load_tokenizer(path) for path in (source.tokenizer[0], tokenizer_path))
  if own.model_sha256 != records.model_sha256:
    raise UserError(
      "Weights and records must have one vocabulary, else every word would mean another. Received: --init_checkpoint "
      f"with {source.tokenizer[0]}, records with {tokenizer_path}. Make the records with the checkpoint's: "
      f"create_pretraining_data.py --spm_model_file={source.tokenizer[0]}."
    )


def _config_beside(prefix: str) -> AlbertConfig | None:
  """The configuration beside a checkpoint, or up to two directories above, as in a run; None without one."""
  folder = os.path.dirname(prefix)
  for above in ("", "..", os.path.join("..", "..")):
    for name in _CONFIG_NAMES:
      path = files.normpath(os.path.join(folder, above, name))
      if files.exists(path):
        return AlbertConfig.from_json_file(path)
  return None


def _check(source: AlbertConfig, config: AlbertConfig, prefix: str) -> None:
  fields = (*_FUNCTION_FIELDS, *_SHARING_FIELDS)
  changed = [
    f"{name} {getattr(source, name)} → {getattr(config, name)}"
    for name in fields
    if getattr(source, name) != getattr(config, name)
  ]
  if changed:
    raise UserError(
      "Weights start a model in which they mean the same. Received: --init_checkpoint "
      f"{prefix}, with another {', '.join(changed)}. Give the model these values of the checkpoint's."
    )
  depths = source.num_hidden_layers, config.num_hidden_layers
  if config.sharing != "all" and depths[0] != depths[1]:
    raise UserError(
      "Only layers that share whole blocks can start from a model of another depth; where layers own weights, some "
      f"would have none, or none would have some. Received: --init_checkpoint {prefix}, of {depths[0]} layers with "
      f"sharing={config.sharing!r}, for {depths[1]}. Use --sharing=all in both, or start a model of {depths[0]} layers."
    )
