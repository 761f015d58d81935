"""JSON keys of the original release and of Hugging Face: which we know, and what each may say."""

from collections.abc import Collection, Mapping
import difflib
import json
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

# Without these a reader would have to guess an architecture.
REQUIRED = (
  "vocab_size",
  "embedding_size",
  "hidden_size",
  "num_hidden_layers",
  "num_attention_heads",
  "intermediate_size",
)

# In the original's files, but read by none of its code paths that build a model.
_ORIGINAL_UNUSED = frozenset(
  "down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks".split()
)
_HUGGINGFACE_MARKS = frozenset("model_type architectures transformers_version".split())
# Bookkeeping of Hugging Face's configurations that says nothing about the encoder's mathematics. The dropout before a
# fine-tuned head, `classifier_dropout_prob`, is an argument of our heads.
_HUGGINGFACE_BOOKKEEPING = _HUGGINGFACE_MARKS | frozenset(
  "_attn_implementation_autoset _commit_hash _name_or_path _num_labels attn_implementation bos_token_id "
  "chunk_size_feed_forward classifier_dropout_prob cls_token_id dtype eos_token_id finetuning_task id2label label2id "
  "language mask_token_id name num_labels output_attentions output_hidden_states output_past pad_token_id prefix "
  "problem_type return_dict sep_token_id task_specific_params tokenizer_class torch_dtype torchscript unk_token_id "
  "use_bfloat16 use_cache".split()
)

# Keys that change the mathematics: only this value is what this project computes.
_HUGGINGFACE_MUST_BE: dict[str, tuple[Any, ...]] = {
  "add_cross_attention": (False,),
  "cross_attention_hidden_size": (None,),
  "is_decoder": (False,),
  "is_encoder_decoder": (False,),
  "position_embedding_type": ("absolute",),
  "pruned_heads": ({}, None),
  "tie_encoder_decoder": (False,),
  "tie_word_embeddings": (True,),
}

_TANH_GELU_NAMES = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_approximate")
_TO_HUGGINGFACE_ACTIVATION = {"gelu": "gelu_new", "gelu_exact": "gelu"}


def select_fields(
  values: Mapping[str, Any], *, known: Collection[str], source: str, huggingface: bool | None
) -> dict[str, Any]:
  """The `AlbertConfig` fields of a JSON object; see `AlbertConfig.from_dict`."""
  if huggingface is None:
    huggingface = not _HUGGINGFACE_MARKS.isdisjoint(values)
  if huggingface:
    _check_huggingface_values(values)
  accepted = set(known) | _ORIGINAL_UNUSED
  if huggingface:
    accepted |= _HUGGINGFACE_BOOKKEEPING | set(_HUGGINGFACE_MUST_BE)
  for key in values:
    if key not in accepted:
      raise UserError(unknown_key_message(key, sorted(accepted), source=source))
  missing = [key for key in REQUIRED if key not in values]
  if missing:
    raise UserError(
      f"A configuration must give {', '.join(REQUIRED)}. Received: no {', '.join(missing)}. "
      "Add them; if this is a BERT configuration, it is not one of an ALBERT."
    )
  fields = {key: value for key, value in values.items() if key in known}
  if "hidden_act" in fields:
    fields["hidden_act"] = _activation(fields["hidden_act"], huggingface=huggingface)
  return fields


def _check_huggingface_values(values: Mapping[str, Any]) -> None:
  model_type = values.get("model_type", "albert")
  if model_type != "albert":
    raise UserError(
      f"model_type must be 'albert'. Received: model_type={model_type!r}. "
      "This project reads ALBERT checkpoints only; give the directory of an ALBERT."
    )
  for key, allowed in _HUGGINGFACE_MUST_BE.items():
    if key in values and values[key] not in allowed:
      raise UserError(
        f"{key} must be {allowed[0]!r}: this project computes nothing else. Received: {key}={values[key]!r}."
      )


def _activation(name: Any, *, huggingface: bool) -> Any:
  """Our name of an activation. Unknown names pass through to the field's own check."""
  if name is None or name == "":
    return "linear"
  if name in _TANH_GELU_NAMES:
    return "gelu"
  if huggingface and name == "gelu":
    return "gelu_exact"
  return name


def to_huggingface(values: Mapping[str, Any]) -> dict[str, Any]:
  """Fields of an `AlbertConfig` (without `sharing`) as `config.json` spells them."""
  activation = values["hidden_act"]
  return {
    **values,
    "hidden_act": _TO_HUGGINGFACE_ACTIVATION.get(activation, activation),
    "architectures": ["AlbertForPreTraining"],
    "bos_token_id": 2,
    "classifier_dropout_prob": 0.1,
    "eos_token_id": 3,
    "model_type": "albert",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
  }


def unknown_key_message(key: str, known: Collection[str], *, source: str) -> str:
  """Names the key and its closest known spellings."""
  close = difflib.get_close_matches(str(key), known, n=3, cutoff=0.6)
  advice = f"Did you mean {', '.join(close)}?" if close else "Remove the key."
  return f"Every key of {source} must be a known one. Received: {key!r}. {advice}"


def read_json_object(path: str) -> dict[str, Any]:
  """The JSON object in a file, or a `UserError` that names the file."""
  if not files.exists(path):
    raise UserError(f"The configuration file must exist. Received: {path}. Check the path.")
  with files.open_binary(path) as stream:
    content = stream.read()
  try:
    parsed = json.loads(content.decode("utf-8"))
  except ValueError as error:
    raise UserError(f"The configuration file must be JSON. Received: {path} ({error}).") from error
  if not isinstance(parsed, dict):
    raise UserError(f"The configuration file must hold a JSON object. Received: {path}.")
  return parsed
