"""`AlbertConfig`: all numbers that define an ALBERT, checked, frozen, and read and written as JSON."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
from typing import Any, Literal

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

_HEAD_SIZE = 64  # Section 3.1: H / 64 heads, and F = 4 H. The release's xlarge alone has 16 heads of 128.
# Far beyond any model: a damaged file is refused before it takes memory. 10^11 parameters are 400 GB.
MOST_POSITIONS, _MOST_PARAMETERS = 1 << 16, 10**11

# In the original's files, but read by none of its code paths that build a model.
_ORIGINAL_UNUSED = "down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks".split()
_HUGGINGFACE_MARKS = ("model_type", "architectures", "transformers_version")
# Keys of Hugging Face that change the mathematics, and the values that this project computes.
_HUGGINGFACE_MUST_BE: dict[str, tuple[Any, ...]] = {
  "model_type": ("albert",),
  "add_cross_attention": (False,),
  "is_decoder": (False,),
  "position_embedding_type": ("absolute",),
  "pruned_heads": ({}, None),
  "tie_word_embeddings": (True,),
}
_TO_HUGGINGFACE_ACTIVATION = {"gelu": "gelu_new", "gelu_exact": "gelu"}
_ACTIVATION_SYNONYMS = {None: "linear", "": "linear", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}


class AlbertConfig(Settings):
  """The architecture of an ALBERT, or of a BERT: sharing="none" and E = H.

  Raises:
    UserError: a value breaks a rule.

  Example:
    >>> config = AlbertConfig.from_name("base", vocab_size=8000)
    >>> config.replace(sharing="ffn").param_count()

  Reference:
    ALBERT, https://arxiv.org/abs/1909.11942, sections 3.1 and 4.
  """

  vocab_size: int = setting(help="V, size of the vocabulary.", minimum=1, maximum=1 << 24)
  embedding_size: int = setting(
    help="E, width of the embedding tables. If E = H, there is no projection from E to H.",
    minimum=1,
    maximum=1 << 16,
  )
  hidden_size: int = setting(
    help="H, width of the layers; a multiple of num_attention_heads.", minimum=1, maximum=1 << 16
  )
  num_hidden_layers: int = setting(help="Number of layers.", minimum=1, maximum=1024)
  num_attention_heads: int = setting(help="N, attention heads; H / N must be an integer.", minimum=1)
  intermediate_size: int = setting(help="F, width of the feed-forward layer.", minimum=1, maximum=1 << 18)
  num_hidden_groups: int = setting(
    1, "Groups of layers; with sharing=all, the layers of a group share their weights.", minimum=1
  )
  inner_group_num: int = setting(1, "Blocks of a group, applied in turn.", minimum=1, maximum=16)
  hidden_act: Literal["gelu", "gelu_exact", "relu", "tanh", "linear"] = setting(
    "gelu", "'gelu' is the tanh form, as in the original code; 'gelu_exact' the erf form."
  )
  hidden_dropout_prob: float = setting(
    0.0, "Dropout rate after embeddings, attention output and feed-forward.", minimum=0.0, below=1.0
  )
  attention_probs_dropout_prob: float = setting(
    0.0, "Dropout rate of the attention probabilities.", minimum=0.0, below=1.0
  )
  max_position_embeddings: int = setting(512, "Longest sequence.", minimum=1, maximum=MOST_POSITIONS)
  type_vocab_size: int = setting(2, "Number of segments.", minimum=1, maximum=1024)
  initializer_range: float = setting(
    0.02, "Standard deviation of the truncated normal of kernels and tables.", above=0.0
  )
  layer_norm_eps: float = setting(1e-12, "Epsilon inside the square root of every LayerNorm.", above=0.0)
  sharing: Literal["all", "attention", "ffn", "none"] = setting(
    "all", "Which weights the layers share (ALBERT, section 4.5 and table 4)."
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    groups = self.num_hidden_groups
    for holds, rule in (
      (
        self.hidden_size % self.num_attention_heads == 0,
        "hidden_size must be divisible by num_attention_heads. Received: {hidden_size} and {num_attention_heads}.",
      ),
      (
        groups <= self.num_hidden_layers,
        "num_hidden_groups must be at most num_hidden_layers. Received: {num_hidden_groups} and {num_hidden_layers}.",
      ),
      (
        groups == 1 or self.sharing == "all",
        "num_hidden_groups divides layers that share everything. Received: {num_hidden_groups} with sharing={sharing}.",
      ),
      (
        self.param_count() <= _MOST_PARAMETERS,
        "A model has at most 100 billion parameters. Received: more, with hidden_size={hidden_size}.",
      ),
    ):
      if not holds:
        raise UserError(rule.format(**vars(self)))

  # Owners of parameters. A block is named (group, inner) as in the original's variable names.

  def attention_owner(self, layer: int, inner: int) -> tuple[int, int]:
    """(group, inner) that owns attention and LayerNorm 1 of inner block `inner` of `layer`."""
    return self._owner(layer, inner, "attention")

  def ffn_owner(self, layer: int, inner: int) -> tuple[int, int]:
    """(group, inner) that owns the feed-forward and LayerNorm 2 of inner block `inner` of `layer`."""
    return self._owner(layer, inner, "ffn")

  @property
  def owners(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The owners of attention and of feed-forward of every block, in order."""
    blocks = [(layer, k) for layer in range(self.num_hidden_layers) for k in range(self.inner_group_num)]
    return [(self.attention_owner(*block), self.ffn_owner(*block)) for block in blocks]

  @property
  def has_one_block(self) -> bool:
    """Whether all layers are one block with one set of weights, so that there may be any number of layers."""
    return self.sharing == "all" and self.num_hidden_groups == 1 and self.inner_group_num == 1

  @property
  def sharing_in_words(self) -> str:
    """The fields that decide `has_one_block`, for messages."""
    groups = f"num_hidden_groups={self.num_hidden_groups}, inner_group_num={self.inner_group_num}"
    return f"sharing={self.sharing}, {groups}"

  def _owner(self, layer: int, inner: int, part: str) -> tuple[int, int]:
    if self.sharing == "all":  # floor(layer / layers * groups): 12 layers in 4 groups are 0,0,0,1,1,1,…
      return layer * self.num_hidden_groups // self.num_hidden_layers, inner
    return (0, inner) if self.sharing == part else (layer, inner)

  # Numbers.

  def param_count(self, heads: Sequence[str] = ()) -> int:
    """Number of parameters of encoder, pooler and `heads`, some of "masked_lm" and "sentence_order"; by formula."""
    left_out = {f"head: {head}" for head in HEADS if head not in heads}
    return sum(copies * one for part, (copies, one) in count_parameters(self).items() if part not in left_out)

  def check_length(self, max_seq_length: int, source: str) -> None:
    """Raises `UserError` if rows have more tokens than the model has positions; `source` names the rows."""
    if max_seq_length > self.max_position_embeddings:
      raise UserError(
        f"max_seq_length must not exceed the model's positions. Received: max_seq_length={max_seq_length} in {source}, "
        f"max_position_embeddings={self.max_position_embeddings}. Take shorter rows, or a model with a longer table."
      )

  # In and out.

  def replace(self, **changes: Any) -> "AlbertConfig":
    """A copy with some fields changed."""
    return dataclasses.replace(self, **changes)

  def at_depth(self, layers: int | None) -> "AlbertConfig":
    """The configuration with the same weights and `layers` layers; None: the number stays.

    Raises:
      UserError: the layers have weights of their own.
    """
    if layers in (None, self.num_hidden_layers):
      return self
    self.check_one_block(f"{layers} layers for a model of {self.num_hidden_layers}")
    return self.replace(num_hidden_layers=layers)

  def check_train_depths(self, depths: Sequence[int]) -> None:
    """Raises `UserError` unless one set of weights can be trained at these numbers of layers."""
    if not depths:
      return
    self.check_one_block(f"train_depths={','.join(map(str, depths))}")
    if len(set(depths)) < len(depths) or max(depths) != self.num_hidden_layers:
      raise UserError(
        "train_depths are different numbers, and the greatest is the model's number of layers. Received: "
        f"{','.join(map(str, depths))} for {self.num_hidden_layers} layers. Use --num_hidden_layers={max(depths)}, in "
        "Python num_hidden_layers."
      )
    for depth in depths:
      self.at_depth(depth)  # At least 1.

  def check_one_block(self, received: str) -> None:
    """Raises `UserError` unless all layers share one block; `received` needs it."""
    if not self.has_one_block:
      raise UserError(
        "Another depth needs one block that all layers share. Received: "
        f"{received}, with {self.sharing_in_words}. Keep its depth."
      )

  def resized(self, **changes: Any) -> "AlbertConfig":
    """As `replace`; another `hidden_size` also changes F and N, unless they are given.

    F = 4 H and N = H / 64, as in all models of the paper (section 3.1). E does not change, unless E = H as in a BERT:
    then it is the new H.

    Example:
      >>> AlbertConfig.from_name("base").resized(hidden_size=2048).num_attention_heads
      32
    """
    width = changes.get("hidden_size", self.hidden_size)
    if width == self.hidden_size:
      return self.replace(**changes)
    if width % _HEAD_SIZE and "num_attention_heads" not in changes:
      raise UserError(
        f"Another hidden_size needs num_attention_heads too, or is a multiple of 64. Received: {width}."
      )
    follows = {"intermediate_size": 4 * width, "num_attention_heads": width // _HEAD_SIZE}
    if self.embedding_size == self.hidden_size:
      follows["embedding_size"] = width
    return self.replace(**{**follows, **changes})

  def to_json_string(self) -> str:
    """All fields under the original's key names, and `layer_norm_eps` and `sharing`, which the original lacks."""
    return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

  def to_huggingface_dict(self) -> dict[str, Any]:
    """The fields under the names of Hugging Face's `config.json`.

    Raises:
      UserError: Hugging Face has no such sharing.
    """
    if self.sharing in ("attention", "ffn"):
      raise UserError(
        "Hugging Face's ALBERT shares whole blocks only. "
        f"Received: sharing={self.sharing!r}. Write it with every layer its own copy (--expand_sharing)."
      )
    values = self.to_dict()
    if values.pop("sharing") == "none":
      values["num_hidden_groups"] = self.num_hidden_layers
    return {
      **values,
      "hidden_act": _TO_HUGGINGFACE_ACTIVATION.get(self.hidden_act, self.hidden_act),
      "bos_token_id": 2,
      "classifier_dropout_prob": 0.1,
      "eos_token_id": 3,
      "model_type": "albert",
      "pad_token_id": 0,
      "position_embedding_type": "absolute",
    }

  @classmethod
  def from_dict(
    cls, values: Mapping[str, Any], *, source: str = "the configuration", huggingface: bool | None = None
  ) -> "AlbertConfig":
    """Reads a configuration with the keys of the original, of Hugging Face or of this project.

    Keys of Hugging Face that do not concern the encoder are ignored. Other unknown keys are an error.

    Args:
      values: the parsed JSON object.
      source: its name in messages.
      huggingface: whether "gelu" means the erf form, as at Hugging Face, or the tanh form, as in the original. None:
        true if `model_type`, `architectures` or `transformers_version` is among the keys.
    """
    fields = {key: value for key, value in values.items() if key not in _ORIGINAL_UNUSED}
    activation = fields.get("hidden_act", "gelu")
    if any(key in values for key in _HUGGINGFACE_MARKS) if huggingface is None else huggingface:
      for key, allowed in _HUGGINGFACE_MUST_BE.items():
        if key in values and values[key] not in allowed:
          raise UserError(f"{key} must be {allowed[0]!r}. Received: {key}={values[key]!r} in {source}.")
      fields = {key: value for key, value in fields.items() if key in cls.__dataclass_fields__}
      activation = "gelu_exact" if activation == "gelu" else activation
    if isinstance(activation, str | None) and "hidden_act" in fields:
      fields["hidden_act"] = _ACTIVATION_SYNONYMS.get(activation, activation)
    return super().from_dict(fields, source=source)

  @classmethod
  def from_json_file(cls, path: str, *, huggingface: bool | None = None, **unsaid: Any) -> "AlbertConfig":
    """Reads a JSON file as `from_dict`; `unsaid` are defaults of keys that the file may leave out."""
    return cls.from_dict({**unsaid, **files.read_json(path)}, source=path, huggingface=huggingface)

  @classmethod
  def from_name(cls, name: str, **changes: Any) -> "AlbertConfig":
    """The configuration of a named size, with fields changed: `from_name("base_v1", vocab_size=8000)`."""
    if name not in SIZES:
      raise UserError(f"The size must be one of {', '.join(SIZES)}. Received: {name!r}.")
    return cls(**{**SIZES[name], **changes})


HEADS = ("masked_lm", "sentence_order")


def count_parameters(config: AlbertConfig) -> dict[str, tuple[int, int]]:
  """Part → (number of copies, parameters of one copy). The paper counts all parts but the heads.

  Equation: (V + P + T + 2) E + [E != H] (E + 1) H + n_a (4 (H + 1) H + 2 H)
    + n_f ((H + 1) F + (F + 1) H + 2 H) + (H + 1) H, where n_a and n_f are the numbers of
    distinct attention and feed-forward sublayers.

  The masked-LM decoder shares the word table and has its own bias.

  Reference:
    ALBERT, section 3.1 and Tables 1, 3 and 4.
  """
  E, H, F = config.embedding_size, config.hidden_size, config.intermediate_size
  attentions, ffns = (len(set(owners)) for owners in zip(*config.owners, strict=True))
  tables = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
  return {
    "embeddings": (1, tables * E + 2 * E),
    "mapping E to H": (int(E != H), _dense(E, H)),
    "attention + LayerNorm": (attentions, 4 * _dense(H, H) + 2 * H),
    "feed-forward + LayerNorm": (ffns, _dense(H, F) + _dense(F, H) + 2 * H),
    "pooler": (1, _dense(H, H)),
    "head: masked_lm": (1, _dense(H, E) + 2 * E + config.vocab_size),
    "head: sentence_order": (1, _dense(H, 2)),
  }


def _dense(inputs: int, outputs: int) -> int:
  return (inputs + 1) * outputs


def _size(H: int, layers: int, heads: int, *, dropout: float = 0.0, **changes: Any) -> dict[str, Any]:
  return {
    "vocab_size": 30_000,  # Section 4.1; the size every released English model has.
    "embedding_size": 128,  # Section 3.1: E = 128 is best when everything is shared.
    "hidden_size": H,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "intermediate_size": 4 * H,  # Section 3.1: F = 4 H.
    "hidden_dropout_prob": dropout,
    "attention_probs_dropout_prob": dropout,
    **changes,
  }


# H, layers, N. The ALBERTs of Table 1. Section 3.1 has H / 64 heads; xlarge's 16, not 32, are the release's. In the
# paper all were trained with dropout until section 4.8 takes it from xxlarge; the release calls that version 1, and
# models of every size without dropout version 2, which a plain name means.
_RELEASED = {
  "base": (768, 12, 12),
  "large": (1024, 24, 16),
  "xlarge": (2048, 24, 16),
  "xxlarge": (4096, 12, 64),
}
SIZES: dict[str, dict[str, Any]] = {
  "tiny": _size(256, 4, 4),  # Not in the paper: small enough to pretrain on one CPU
  "small": _size(512, 6, 8),  # or one small GPU.
  **{
    name + version: _size(*shape, dropout=0.1 if version == "_v1" and name != "xxlarge" else 0.0)
    for name, shape in _RELEASED.items()
    for version in ("", "_v2", "_v1")
  },
  # The BERTs of Table 1: this model with nothing shared and embeddings as wide as the layers, on the same records.
  # So has the paper: BERT-base of its table 2 and the unshared E = 768 of table 3 are one row. BERT-xlarge is of the
  # paper's first version; its heads are ALBERT-xlarge's, so that the pair differs in sharing and E alone.
  "bert_base": _size(768, 12, 12, dropout=0.1, embedding_size=768, sharing="none"),
  "bert_large": _size(1024, 24, 16, dropout=0.1, embedding_size=1024, sharing="none"),
  "bert_xlarge": _size(2048, 24, 16, dropout=0.1, embedding_size=2048, sharing="none"),
}


def named_sizes() -> list[str]:
  """The names that `AlbertConfig.from_name` accepts."""
  return list(SIZES)
