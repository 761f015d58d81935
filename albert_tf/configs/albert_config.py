"""`AlbertConfig`: all numbers that define an ALBERT, checked, frozen, read and written as JSON.

Below it: the number of parameters by formula, and the named sizes.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
from typing import Any, Literal

from albert_tf import json_files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

# Far beyond any model: a damaged file is refused before it takes memory. 10^11 parameters are
# 400 GB.
MOST_POSITIONS = 1 << 16
_MOST_PARAMETERS = 10**11

# In the original's files, but read by none of its code paths that build a model. It needs some of
# them, with these values, for its --init_from_group0.
_ORIGINAL_UNUSED = {
  "down_scale_factor": 1,
  "gap_size": 0,
  "net_structure_type": 0,
  "num_memory_blocks": 0,
}
_IGNORED = {*_ORIGINAL_UNUSED, "layers_to_keep"}
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
_ACTIVATION_SYNONYMS = {
  None: "linear",
  "": "linear",
  "gelu_new": "gelu",
  "gelu_pytorch_tanh": "gelu",
}


class AlbertConfig(Settings):
  """The architecture of an ALBERT, or of a BERT: sharing="none" and E = H.

  Raises:
    UserError: a value breaks a rule.

  Example:
    >>> config = AlbertConfig.from_name("base", vocab_size=8000)
    >>> dataclasses.replace(config, sharing="ffn").param_count()

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
  num_attention_heads: int = setting(
    help="N, attention heads; H / N must be an integer.", minimum=1
  )
  intermediate_size: int = setting(
    help="F, width of the feed-forward layer.", minimum=1, maximum=1 << 18
  )
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
  max_position_embeddings: int = setting(
    512, "Longest sequence.", minimum=1, maximum=MOST_POSITIONS
  )
  type_vocab_size: int = setting(2, "Number of segments.", minimum=1, maximum=1024)
  initializer_range: float = setting(
    0.02, "Standard deviation of the truncated normal of kernels and tables.", above=0.0
  )
  layer_norm_eps: float = setting(
    1e-12, "Epsilon inside the square root of every LayerNorm.", above=0.0
  )
  sharing: Literal["all", "attention", "ffn", "none"] = setting(
    "all", "Which weights the layers share (ALBERT, section 4.5 and table 4)."
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.hidden_size % self.num_attention_heads != 0:
      raise UserError(
        "hidden_size must be divisible by num_attention_heads. "
        f"Received: {self.hidden_size} and {self.num_attention_heads}."
      )
    if self.num_hidden_groups > self.num_hidden_layers:
      raise UserError(
        "num_hidden_groups must be at most num_hidden_layers. "
        f"Received: {self.num_hidden_groups} and {self.num_hidden_layers}."
      )
    if self.num_hidden_groups > 1 and self.sharing != "all":
      raise UserError(
        "num_hidden_groups divides layers that share everything. "
        f"Received: {self.num_hidden_groups} with sharing={self.sharing}."
      )
    if self.param_count() > _MOST_PARAMETERS:
      raise UserError(
        "A model has at most 100 billion parameters. "
        f"Received: more, with hidden_size={self.hidden_size}."
      )

  # Owners of parameters. A block is named (group, inner) as in the original's variable names.

  @property
  def owners(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The owners of attention and of feed-forward of every block, in order.

    Each owns its LayerNorm too: LayerNorm 1 is the attention's, LayerNorm 2 the feed-forward's.
    With sharing="ffn" and two layers: [((0, 0), (0, 0)), ((1, 0), (0, 0))].
    """
    owners = []
    for layer in range(self.num_hidden_layers):
      for inner in range(self.inner_group_num):
        attention = self._owner(layer, inner, "attention")
        ffn = self._owner(layer, inner, "ffn")
        owners.append((attention, ffn))
    return owners

  def _owner(self, layer: int, inner: int, sublayer: str) -> tuple[int, int]:
    if self.sharing == "all":
      # Groups follow each other and are of equal size: 12 layers in 4 groups are 0,0,0,1,1,1,…
      return layer * self.num_hidden_groups // self.num_hidden_layers, inner
    if self.sharing == sublayer:
      return 0, inner
    return layer, inner

  @property
  def has_one_block(self) -> bool:
    """Whether all layers are one block with one set of weights.

    Then there may be any number of layers.
    """
    return self.sharing == "all" and self.num_hidden_groups == 1 and self.inner_group_num == 1

  @property
  def sharing_in_words(self) -> str:
    """The fields that decide `has_one_block`, for messages."""
    groups = f"num_hidden_groups={self.num_hidden_groups}, inner_group_num={self.inner_group_num}"
    return f"sharing={self.sharing}, {groups}"

  # Numbers.

  def param_count(self, heads: Sequence[str] = ()) -> int:
    """Number of parameters of encoder, pooler and `heads`, some of `HEADS`; by formula."""
    total = 0
    for part, (copies, parameters) in count_parameters(self).items():
      head = part.removeprefix("head: ")
      if head == part or head in heads:
        total += copies * parameters
    return total

  def check_length(self, max_seq_length: int, source: str) -> None:
    """Raises `UserError` if rows have more tokens than the model has positions.

    `source` names the rows.
    """
    if max_seq_length > self.max_position_embeddings:
      raise UserError(
        "max_seq_length must not exceed the model's positions. "
        f"Received: max_seq_length={max_seq_length} in {source}, "
        f"max_position_embeddings={self.max_position_embeddings}. "
        "Take shorter rows, or a model with a longer table."
      )

  # In and out.

  def at_depth(self, layers: int | None) -> "AlbertConfig":
    """The configuration with the same weights and `layers` layers; None: the number stays.

    Raises:
      UserError: the layers have weights of their own.
    """
    if layers in (None, self.num_hidden_layers):
      return self
    self.check_one_block(f"{layers} layers for a model of {self.num_hidden_layers}")
    return dataclasses.replace(self, num_hidden_layers=layers)

  def check_train_depths(self, depths: Sequence[int]) -> None:
    """Raises `UserError` unless one set of weights can be trained at these numbers of layers."""
    if not depths:
      return
    depths_text = ",".join(map(str, depths))
    self.check_one_block(f"train_depths={depths_text}")
    if len(set(depths)) < len(depths) or max(depths) != self.num_hidden_layers:
      raise UserError(
        "train_depths are different numbers, and the greatest is the model's number of layers. "
        f"Received: {depths_text} for {self.num_hidden_layers} layers. "
        f"Use --num_hidden_layers={max(depths)}, in Python num_hidden_layers."
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

  def to_json_string(self) -> str:
    """All fields under the original's names, and `layer_norm_eps` and `sharing`, which it lacks."""
    return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

  def to_original_dict(self) -> dict[str, Any]:
    """The fields as in the original's `albert_config.json`.

    Raises:
      UserError: the original code would compute a different function with this configuration, or
        has no such sharing.
    """
    if self.layer_norm_eps != 1e-12 or self.hidden_act == "gelu_exact":
      raise UserError(
        "The original code computes the tanh form of GELU and LayerNorm with epsilon 1e-12, "
        "whatever its configuration says. Received: "
        f"hidden_act={self.hidden_act!r}, layer_norm_eps={self.layer_norm_eps}. "
        "Keep this model in the format of this project or of Hugging Face."
      )
    values = self._with_groups()
    del values["layer_norm_eps"]
    return values | _ORIGINAL_UNUSED

  def to_huggingface_dict(self) -> dict[str, Any]:
    """The fields under the names of Hugging Face's `config.json`.

    Raises:
      UserError: Hugging Face has no such sharing.
    """
    return self._with_groups() | {
      "hidden_act": _TO_HUGGINGFACE_ACTIVATION.get(self.hidden_act, self.hidden_act),
      "bos_token_id": 2,
      "classifier_dropout_prob": 0.1,
      "eos_token_id": 3,
      "model_type": "albert",
      "pad_token_id": 0,
      "position_embedding_type": "absolute",
    }

  def _with_groups(self) -> dict[str, Any]:
    """The fields without `sharing`: the other formats say with groups what is shared."""
    if self.sharing in ("attention", "ffn"):
      raise UserError(
        "Only this project's format shares only attention or feed-forward. "
        f"Received: sharing={self.sharing!r}. "
        "Add --expand_sharing: every layer gets its own copy, and the model computes the same."
      )
    values = self.to_dict()
    if values.pop("sharing") == "none":
      # A group owns its weights: with 12 layers, 12 groups of one layer share nothing.
      values["num_hidden_groups"] = self.num_hidden_layers
    return values

  @classmethod
  def from_dict(
    cls,
    values: Mapping[str, Any],
    *,
    source: str = "the configuration",
    huggingface: bool | None = None,
  ) -> "AlbertConfig":
    """Reads a configuration with the keys of the original, of Hugging Face or of this project.

    Keys of Hugging Face that do not concern the encoder are ignored. Other unknown keys are an
    error.

    Args:
      values: the parsed JSON object.
      source: its name in messages.
      huggingface: whether "gelu" means the erf form, as at Hugging Face, or the tanh form, as in
        the original. None: true if `model_type`, `architectures` or `transformers_version` is
        among the keys.
    """
    if huggingface is None:
      huggingface = any(mark in values for mark in _HUGGINGFACE_MARKS)
    ignored = _IGNORED
    synonyms = _ACTIVATION_SYNONYMS
    if huggingface:
      for key, allowed in _HUGGINGFACE_MUST_BE.items():
        if key in values and values[key] not in allowed:
          raise UserError(
            f"{key} must be {allowed[0]!r}. Received: {key}={values[key]!r} in {source}."
          )
      ignored = values.keys() - cls.__dataclass_fields__
      synonyms = synonyms | {"gelu": "gelu_exact"}

    fields = {key: value for key, value in values.items() if key not in ignored}
    # A value of another type stays: the check of the fields names it.
    activation = fields.get("hidden_act", 0)
    if isinstance(activation, str | None):
      fields["hidden_act"] = synonyms.get(activation, activation)
    return super().from_dict(fields, source=source)

  @classmethod
  def from_json_file(
    cls, path: str, *, huggingface: bool | None = None, **defaults: Any
  ) -> "AlbertConfig":
    """Reads a JSON file as `from_dict`; `defaults` are for keys that the file leaves out."""
    return cls.from_dict(defaults | json_files.read(path), source=path, huggingface=huggingface)

  @classmethod
  def from_name(cls, name: str, **changes: Any) -> "AlbertConfig":
    """A named size, with fields changed: `from_name("base_v1", vocab_size=8000)`."""
    if name not in SIZES:
      raise UserError(f"The size must be one of {', '.join(SIZES)}. Received: {name!r}.")
    return cls(**(SIZES[name] | changes))


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
  E = config.embedding_size
  H = config.hidden_size
  F = config.intermediate_size
  tables = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
  attention_owners = {attention for attention, _ in config.owners}
  ffn_owners = {ffn for _, ffn in config.owners}
  return {
    "embeddings": (1, tables * E + 2 * E),
    "mapping E to H": (int(E != H), _dense(E, H)),
    "attention + LayerNorm": (len(attention_owners), 4 * _dense(H, H) + 2 * H),
    "feed-forward + LayerNorm": (len(ffn_owners), _dense(H, F) + _dense(F, H) + 2 * H),
    "pooler": (1, _dense(H, H)),
    "head: masked_lm": (1, _dense(H, E) + 2 * E + config.vocab_size),
    "head: sentence_order": (1, _dense(H, 2)),
  }


def _dense(inputs: int, outputs: int) -> int:
  # Kernel and bias.
  return (inputs + 1) * outputs


def _size(
  H: int, layers: int, heads: int, *, dropout: float = 0.0, E: int = 128, sharing: str = "all"
) -> dict[str, Any]:
  """The fields of a size. Section 3.1: E = 128 is best when everything is shared."""
  return {
    "vocab_size": 30_000,  # Section 4.1; the size every released English model has.
    "embedding_size": E,
    "hidden_size": H,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "intermediate_size": 4 * H,  # Section 3.1: F = 4 H.
    "hidden_dropout_prob": dropout,
    "attention_probs_dropout_prob": dropout,
    "sharing": sharing,
  }


SIZES: dict[str, dict[str, Any]] = {
  # Not in the paper: small enough to pretrain on one CPU or one small GPU.
  "tiny": _size(256, 4, 4),
  "small": _size(512, 6, 8),
  # The ALBERTs of table 1: H, layers, N. Section 3.1 has H / 64 heads; xlarge's 16, not 32, are
  # the release's. In the paper all were trained with dropout until section 4.8 takes it from
  # xxlarge. The release calls that version 1, and models of every size without dropout version 2,
  # which a plain name means.
  "base": _size(768, 12, 12),
  "base_v2": _size(768, 12, 12),
  "base_v1": _size(768, 12, 12, dropout=0.1),
  "large": _size(1024, 24, 16),
  "large_v2": _size(1024, 24, 16),
  "large_v1": _size(1024, 24, 16, dropout=0.1),
  "xlarge": _size(2048, 24, 16),
  "xlarge_v2": _size(2048, 24, 16),
  "xlarge_v1": _size(2048, 24, 16, dropout=0.1),
  "xxlarge": _size(4096, 12, 64),
  "xxlarge_v2": _size(4096, 12, 64),
  "xxlarge_v1": _size(4096, 12, 64),
  # The BERTs of table 1: this model with nothing shared and E = H, on the same records. So has the
  # paper: BERT-base of its table 2 and the unshared E = 768 of table 3 are one row. BERT-xlarge is
  # of the paper's first version; its heads are ALBERT-xlarge's, so that the pair differs in
  # sharing and E alone.
  "bert_base": _size(768, 12, 12, dropout=0.1, E=768, sharing="none"),
  "bert_large": _size(1024, 24, 16, dropout=0.1, E=1024, sharing="none"),
  "bert_xlarge": _size(2048, 24, 16, dropout=0.1, E=2048, sharing="none"),
}
