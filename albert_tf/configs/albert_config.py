"""`AlbertConfig`: every number that defines an ALBERT, checked, frozen, strict JSON in and out."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
from typing import Any

from albert_tf.configs import json_keys
from albert_tf.configs.param_count import count_head_parameters, count_parameters
from albert_tf.configs.sizes import SIZES
from albert_tf.errors import UserError

# "gelu" is the tanh form, as in the original code; "gelu_exact" is the erf form.
ACTIVATIONS = ("gelu", "gelu_exact", "relu", "tanh", "linear")
# Which parameters of the transformer block the layers share (ALBERT, section 4.5).
SHARING_KINDS = ("all", "attention", "ffn", "none")
_HEAD_SIZE = 64  # Section 3.1: H / 64 heads, and F = 4 H. The release's xlarge alone has 16 heads of 128.


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlbertConfig:
  """The architecture of an ALBERT (or, unshared with E = H, of a BERT).

  Args:
    vocab_size: V, number of pieces.
    embedding_size: E, width of the embedding tables. E = H has no mapping to H.
    hidden_size: H; a multiple of `num_attention_heads`.
    num_hidden_layers: how often a block is applied.
    num_attention_heads: N.
    intermediate_size: F, width of the feed-forward layer.
    num_hidden_groups: number of distinct blocks the layers are divided into (`sharing="all"` only).
    inner_group_num: blocks inside one group, applied one after the other.
    hidden_act: "gelu" (tanh form) | "gelu_exact" (erf form) | "relu" | "tanh" | "linear".
    hidden_dropout_prob: after embeddings, attention output and feed-forward.
    attention_probs_dropout_prob: on the attention probabilities.
    max_position_embeddings: longest sequence.
    type_vocab_size: number of segments.
    initializer_range: standard deviation of the truncated normal of kernels and tables.
    layer_norm_eps: epsilon inside the square root of every LayerNorm.
    sharing: what the layers share: "all" | "attention" | "ffn" | "none".

  Raises:
    UserError: a value breaks a rule; the message names the rule and the value.

  Example:
    >>> config = AlbertConfig.from_name("base", vocab_size=8000)
    >>> config.replace(sharing="ffn").param_count()

  Reference:
    ALBERT, https://arxiv.org/abs/1909.11942, sections 3.1 and 4.
  """

  vocab_size: int
  embedding_size: int
  hidden_size: int
  num_hidden_layers: int
  num_attention_heads: int
  intermediate_size: int
  num_hidden_groups: int = 1
  inner_group_num: int = 1
  hidden_act: str = "gelu"
  hidden_dropout_prob: float = 0.0
  attention_probs_dropout_prob: float = 0.0
  max_position_embeddings: int = 512
  type_vocab_size: int = 2
  initializer_range: float = 0.02
  layer_norm_eps: float = 1e-12
  sharing: str = "all"

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      if field.type is int:
        _check_positive_int(field.name, getattr(self, field.name))
      elif field.type is float:
        object.__setattr__(self, field.name, _as_float(field.name, getattr(self, field.name)))
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
      if not 0.0 <= getattr(self, name) < 1.0:
        raise UserError(f"{name} must be at least 0 and below 1. Received: {name}={getattr(self, name)}.")
    for name in ("initializer_range", "layer_norm_eps"):
      if not 0.0 < getattr(self, name) < float("inf"):
        raise UserError(f"{name} must be above 0 and finite. Received: {name}={getattr(self, name)}.")
    _check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
    _check_choice("sharing", self.sharing, SHARING_KINDS)
    self._check_shape()

  def _check_shape(self) -> None:
    if self.hidden_size % self.num_attention_heads:
      raise UserError(
        "hidden_size must be divisible by num_attention_heads. "
        f"Received: hidden_size={self.hidden_size}, num_attention_heads={self.num_attention_heads}."
      )
    if self.num_hidden_groups > self.num_hidden_layers:
      raise UserError(
        "num_hidden_groups must be at most num_hidden_layers. Received: "
        f"num_hidden_groups={self.num_hidden_groups}, num_hidden_layers={self.num_hidden_layers}."
      )
    if self.sharing != "all" and self.num_hidden_groups != 1:
      raise UserError(
        "num_hidden_groups divides layers that share everything, so it must be 1 with any other sharing. "
        f"Received: sharing={self.sharing!r}, num_hidden_groups={self.num_hidden_groups}. "
        "Leave num_hidden_groups out, or use sharing='all'."
      )

  # Where parameters live. A block is named (group, inner) as in the original's variable names.

  @property
  def head_size(self) -> int:
    """D = H / N."""
    return self.hidden_size // self.num_attention_heads

  def group_of_layer(self, layer: int) -> int:
    """floor(layer / layers * groups), in exact integers (12 layers, 4 groups: 0,0,0,1,1,1,…)."""
    if not 0 <= layer < self.num_hidden_layers:
      raise IndexError(f"layer must be in [0, {self.num_hidden_layers}). Received: {layer}.")
    return layer * self.num_hidden_groups // self.num_hidden_layers

  def attention_owner(self, layer: int, inner: int) -> tuple[int, int]:
    """(group, inner) that owns attention and LayerNorm 1 of inner block `inner` of `layer`."""
    return self._owner(layer, inner, "attention")

  def ffn_owner(self, layer: int, inner: int) -> tuple[int, int]:
    """(group, inner) that owns the feed-forward and LayerNorm 2 of inner block `inner` of `layer`."""
    return self._owner(layer, inner, "ffn")

  def _owner(self, layer: int, inner: int, part: str) -> tuple[int, int]:
    group = self.group_of_layer(layer)  # Checks the range of `layer`.
    if not 0 <= inner < self.inner_group_num:
      raise IndexError(f"inner must be in [0, {self.inner_group_num}). Received: {inner}.")
    if self.sharing == "all":
      return group, inner
    return (0, inner) if self.sharing == part else (layer, inner)

  def check_separable(self, count: int) -> None:
    """Raises a `UserError` where the first `count` layers share parameters with those above them."""
    owners = [
      {
        (part, owner(layer, inner))
        for part, owner in (("a", self.attention_owner), ("f", self.ffn_owner))
        for inner in range(self.inner_group_num)
      }
      for layer in range(self.num_hidden_layers)
    ]
    depths = range(self.num_hidden_layers + 1)
    separable = [n for n in depths if not set().union(*owners[:n]) & set().union(*owners[n:])]
    if count not in separable:
      raise UserError(
        f"Layers that share parameters are frozen together. Received: freeze_layers={count} of "
        f"{self.num_hidden_layers} layers with sharing={self.sharing!r} and {self.num_hidden_groups} groups. Choose "
        f"one of {', '.join(map(str, separable))}."
      )

  # Numbers.

  def param_count(self, heads: Sequence[str] = ()) -> int:
    """Parameters of encoder and pooler, plus those of the heads, of "masked_lm" and "sentence_order"; by formula."""
    total = count_parameters(self).total
    return total + sum(count_head_parameters(self, head) for head in heads)

  # In and out.

  def replace(self, **changes: Any) -> "AlbertConfig":
    """A copy with some fields changed; an unknown name is an error."""
    known = [field.name for field in dataclasses.fields(self)]
    for name in changes:
      if name not in known:
        raise UserError(json_keys.unknown_key_message(name, known, where="AlbertConfig"))
    return dataclasses.replace(self, **changes)

  def resized(self, **changes: Any) -> "AlbertConfig":
    """`replace`; with another `hidden_size`, what follows from it in the paper does so unless it is given too.

    F = 4 H and N = H / 64, as the paper sets them in all models (section 3.1). E stays as it is, but where it was H,
    as in a BERT: there it is H again.

    Raises:
      UserError: a width that 64 does not divide, without a number of heads.

    Example:
      >>> AlbertConfig.from_name("base").resized(hidden_size=2048).num_attention_heads
      32
    """
    width = changes.get("hidden_size", self.hidden_size)
    if width == self.hidden_size:
      return self.replace(**changes)
    if width % _HEAD_SIZE and "num_attention_heads" not in changes:
      raise UserError(
        f"Another hidden_size has hidden_size / {_HEAD_SIZE} heads unless their number is given. Received: "
        f"hidden_size={width}. Give num_attention_heads too, or a multiple of {_HEAD_SIZE}."
      )
    follows = {"intermediate_size": 4 * width, "num_attention_heads": width // _HEAD_SIZE}
    if self.embedding_size == self.hidden_size:
      follows["embedding_size"] = width
    return self.replace(**{**follows, **changes})

  def to_dict(self) -> dict[str, Any]:
    """All fields, under the original's key names (and `layer_norm_eps`, `sharing`, which it lacks)."""
    return dataclasses.asdict(self)

  def to_json_string(self) -> str:
    return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

  def to_huggingface_dict(self) -> dict[str, Any]:
    """The fields as `config.json` of Hugging Face names them.

    Raises:
      UserError: Hugging Face cannot express this sharing.
    """
    if self.sharing in ("attention", "ffn"):
      raise UserError(
        "Hugging Face's ALBERT shares whole blocks only. "
        f"Received: sharing={self.sharing!r}. Write it with every layer its own copy (--expand_sharing)."
      )
    values = self.to_dict()
    if values.pop("sharing") == "none":
      values["num_hidden_groups"] = self.num_hidden_layers
    return json_keys.to_huggingface(values)

  @classmethod
  def from_dict(cls, values: Mapping[str, Any], *, source: str = "auto") -> "AlbertConfig":
    """Reads the original's, Hugging Face's or this project's keys, and nothing else.

    Args:
      values: the parsed JSON object.
      source: "albert" (the original's keys and this project's) | "huggingface" | "auto" (Hugging Face's
        if `model_type`, `architectures` or `transformers_version` is there). It decides what
        hidden_act="gelu" means: tanh form in the original, erf form in Hugging Face.

    Raises:
      UserError: an unknown key (with close matches), a missing key, or a bad value.
    """
    known = [field.name for field in dataclasses.fields(cls)]
    return cls(**json_keys.select_fields(values, known=known, source=source))

  @classmethod
  def from_json_file(
    cls, path: str, *, source: str = "auto", vocab_size: int | None = None
  ) -> "AlbertConfig":
    """`from_dict` of a JSON file; `vocab_size` is that of a file which gives none."""
    values = json_keys.read_json_object(path)
    unsaid = {} if vocab_size is None else {"vocab_size": vocab_size}
    return cls.from_dict({**unsaid, **values}, source=source)

  @classmethod
  def from_name(cls, name: str, **changes: Any) -> "AlbertConfig":
    """A named size (`named_sizes()`), with fields changed: `from_name("base_v1", vocab_size=8000)`."""
    if name not in SIZES:
      raise UserError(f"The size must be one of {', '.join(SIZES)}. Received: {name!r}.")
    return cls(**SIZES[name]).replace(**changes)


def _check_positive_int(name: str, value: Any) -> None:
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    raise UserError(f"{name} must be an integer of at least 1. Received: {name}={value!r}.")


def _as_float(name: str, value: Any) -> float:
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise UserError(f"{name} must be a number. Received: {name}={value!r}.")
  return float(value)


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
  if value not in choices:
    raise UserError(f"{name} must be one of {', '.join(choices)}. Received: {name}={value!r}.")
