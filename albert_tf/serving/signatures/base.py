"""What the SavedModels of all kinds share: a `tf.Module` that makes a table of signatures.

The Keras model is used only while the functions are traced. TensorFlow Serving loads models in a
Session. A saved Keras 3 model does not load in a Session; a module that tracks the bare
`tf.Variable`s does.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.modeling import named_variables
from albert_tf.serving.settings import ExportSettings
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.tokenization.graph_inputs import Tensors as Tensors
from albert_tf.tokenization.graph_inputs import limit_characters, text_batch
from albert_tf.windows.text_windows import in_chunks

# The first inputs of every signature of ids, in this order.
TOKEN_KEYS: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")
Signatures = dict[str, Any]  # The name that clients use → its `tf.function`.


@dataclasses.dataclass(frozen=True)
class ServedModel:
  """A Keras model, and how it answers.

  Attributes:
    model: a built `TextModel` with a preprocessor.
    task: of a fine-tuned model; None for a pretrained one.
  """

  model: Any
  settings: ExportSettings
  task: TaskSpec | None


def strings(*names: str, rank: int = 1) -> tuple[tf.TensorSpec, ...]:
  """String inputs, `[B]` by default."""
  return tuple(tf.TensorSpec([None] * rank, tf.string, name=name) for name in names)


def ids(*names: str, rank: int = 2) -> tuple[tf.TensorSpec, ...]:
  """int32 inputs, `[B, S]` by default."""
  return tuple(tf.TensorSpec([None] * rank, tf.int32, name=name) for name in names)


class ServingModule(tf.Module):
  """Tracks a model's variables and its tokenizer; a subclass makes the functions of a kind."""

  def __init__(self, served: ServedModel):
    super().__init__()
    # TensorFlow does not track a dataclass, so the Keras model in it is not saved.
    self.served = served
    self.task: Any = served.task
    preprocessor = served.model.needed_preprocessor()
    self.max_length = served.settings.max_seq_length or preprocessor.max_length
    served.model.config.check_length(self.max_length, "the export")
    # TensorFlow saves what a module has. An export in 8 or 16 bits replaces some of them.
    self.model_variables = list(named_variables(served.model).values())
    # Another than the preprocessor's, which is part of a Keras layer.
    self.tokenizer: Any = graph_tokenizer(preprocessor.tokenizer)

  def signatures(self, depth: int | None = None) -> Signatures:
    """The functions that clients call, by name; `depth` is the number of layers, None for all.

    They are made from the bottom up: first that of ids, which runs the model, then those of
    strings, which call it. So the SavedModel holds each computation once.
    """
    raise NotImplementedError

  def signature(self, inputs: Sequence[tf.TensorSpec]) -> Callable[[Callable[..., Tensors]], Any]:
    """Decorates a function that clients call; the inputs are in the order of its arguments.

    All that a SavedModel computes is computed in such functions. They are traced where they are
    first called, and again where TensorFlow saves them.
    """
    return tf.function(input_signature=inputs, autograph=False)

  def pack(
    self, text: tf.Tensor, text_pair: tf.Tensor | None = None, *, allow_mask: bool = False
  ) -> Tensors:
    """Tokenizes strings into a batch; see `text_batch`."""
    if text_pair is not None:
      text_pair = limit_characters(text_pair)
    return text_batch(
      self.tokenizer,
      limit_characters(text),
      text_pair,
      max_length=self.max_length,
      allow_mask=allow_mask,
    )

  def run_model(self, *ids: tf.Tensor, depth: int | None, **more_inputs: tf.Tensor) -> Any:
    """Calls the model with `TOKEN_KEYS` in order and other inputs by name."""
    # Not under the control dependencies of the check, which would prevent folding and fusing of ops.
    inputs = self.checked(*ids, **more_inputs)
    return self.served.model(inputs, training=False, depths=depths_of(depth))

  def checked(self, *ids: tf.Tensor, **more_inputs: tf.Tensor) -> Tensors:
    """The inputs by name, after a check of their length and values."""
    inputs = dict(zip(TOKEN_KEYS, ids, strict=True), **more_inputs)
    # Of positions, too: logits of the whole vocabulary at many thousands of them take all memory.
    length = tf.reduce_max([tf.shape(tensor)[-1] for tensor in inputs.values()])
    config = self.served.model.config
    limit = config.max_position_embeddings
    message = f"A sequence must not be longer than max_position_embeddings={limit}."
    checks = [tf.debugging.assert_less_equal(length, limit, message=message)]
    # The model itself makes something of other masks and segments, and on a GPU of other ids.
    counts = {
      "input_ids": config.vocab_size,
      "input_mask": 2,
      "segment_ids": config.type_vocab_size,
      "p_mask": 2,
      "masked_lm_positions": tf.shape(inputs["input_ids"])[-1],
    }
    checks += [assert_below(counts[name], tensor, name) for name, tensor in inputs.items()]
    with tf.control_dependencies(checks):
      return {name: tf.identity(tensor) for name, tensor in inputs.items()}


def depths_of(depth: int | None) -> tuple[int, ...]:
  """What `Encoder` reads for a signature's number of layers; None is the model's own."""
  return () if depth is None else (depth,)


def run_on_windows(tokens: Any, batch: Tensors) -> Tensors:
  """What the signature `tokens` gives for a batch of any number of windows."""
  outputs = tf.nest.map_structure(
    lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
    tokens.get_concrete_function().structured_outputs,
  )
  return in_chunks(lambda chunk: tokens(**chunk), batch, outputs)


def assert_below(count: int | tf.Tensor, tensor: tf.Tensor, name: str) -> tf.Operation:
  """Fails unless all of an int32 tensor are from 0 to `count` - 1."""
  smallest = tf.reduce_min(tensor)
  largest = tf.reduce_max(tensor)
  message = [f"{name} must be from 0 to", count - 1, "and are from", smallest, "to", largest]
  return tf.debugging.Assert((smallest >= 0) & (largest < count), message)
