"""The code for differences between the supported stacks.

`keras3`: TensorFlow 2.20-2.21 with Keras 3. `addons`: TensorFlow 2.15 with Keras 2.15 and
TensorFlow Addons. `tpu`: tensorflow-tpu 2.19, which has the TPU's kernels, with Keras 3. Other
modules do not check the stack: `import keras` is the right Keras on each.
"""

from collections.abc import Sequence
import contextlib
from typing import Any
import warnings

import keras
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels
from tensorflow.python.ops import control_flow_util

from albert_tf.errors import UserError

KERAS_3 = int(keras.__version__.split(".")[0]) >= 3
# PyPI's `tensorflow` has none; `tensorflow-tpu` and the TensorFlow of Cloud TPU's images do.
TPU_KERNELS = bool(kernels.get_registered_kernels_for_op("TPUExecute").kernel)
HOST_XLA = not TPU_KERNELS  # tensorflow-tpu comes without XLA's compiler for the CPU.
# Its XLA takes cuDNN's attention as a custom call; that of TensorFlow 2.15 had another form of it.
HAS_FUSED_ATTENTION = KERAS_3 and not TPU_KERNELS
# oneDNN's products of 8 bits: in builds for x86 from TensorFlow 2.19 on.
HAS_INT8_PRODUCTS = bool(kernels.get_registered_kernels_for_op("_QuantizedMatMul").kernel)
STACK = "keras3"
if TPU_KERNELS:
  STACK = "tpu"
if not KERAS_3:
  STACK = "addons"


def device_kind(strategy: tf.distribute.Strategy | None = None) -> str:
  """The kind of device of a strategy, by default the current one: "tpu", "gpu" or "cpu"."""
  if strategy is None:
    strategy = tf.distribute.get_strategy()
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return "tpu"
  has_gpu = bool(tf.config.get_visible_devices("GPU"))
  if isinstance(strategy, tf.distribute.OneDeviceStrategy):
    has_gpu = "GPU" in strategy.extended.worker_devices[0]
  if has_gpu:
    return "gpu"
  return "cpu"


def is_compiled_by_xla() -> bool:
  """Whether the graph that is being traced is, or is part of, a function with `jit_compile=True`."""
  return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def on_coordinator() -> contextlib.AbstractContextManager[Any]:
  """Within it, ops and the tables of a tokenizer are on the CPU of this process.

  With a slice of TPU hosts, TensorFlow's default and its "/cpu:0" are on the first host. It writes
  to its own disk, and gives this process no tables.
  """
  return tf.device(f"{context.context().host_address_space()}/device:CPU:0")


def raw_variable(variable: Any) -> tf.Variable:
  """The `tf.Variable` behind a weight: Keras 3 wraps it, Keras 2 does not."""
  if KERAS_3 and not isinstance(variable, tf.Variable):
    return variable.value
  return variable


def variable_path(variable: Any) -> str:
  """The name of a Keras weight with its layers; Keras 2 has TensorFlow's, with an output index."""
  if hasattr(variable, "path"):
    return variable.path
  return variable.name.split(":")[0]


def building(layer: Any) -> contextlib.AbstractContextManager[Any]:
  """Within it, `layer.build` gives its weights the layer's name before their own.

  Keras 3 does so by itself; Keras 2 only for layers that are built by their first call.
  """
  if KERAS_3:
    return contextlib.nullcontext()
  return tf.name_scope(layer.name)


def tensorflow_addons() -> Any:
  """The `tensorflow_addons` package; raises `UserError` on other stacks."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # It announces its own end of life.
    try:
      import tensorflow_addons
    except ImportError as error:
      raise UserError(
        "tfa_lamb needs TensorFlow Addons, which ended with TensorFlow 2.15. "
        f"Received: TensorFlow {tf.__version__} without it. "
        "Use --optimizer=lamb --bias_correction: it is the same update."
      ) from error
  return tensorflow_addons


def optimizer_variables(optimizer: Any) -> dict[str, tf.Variable]:
  """All state of a built optimizer by number: updates made, slots, and a rate that is a variable."""
  variables = list(optimizer.variables)
  if not KERAS_3 and isinstance(optimizer._learning_rate, tf.Variable):
    variables.append(optimizer._learning_rate)  # Keras 2 leaves it out.
  return {f"optimizer/{i}": raw_variable(variable) for i, variable in enumerate(variables)}


def updates_made(optimizer: Any) -> int:
  """The number of updates that an optimizer has made, also on several replicas."""
  return int(tf.convert_to_tensor(optimizer.iterations))


def scale_loss(optimizer: Any, loss: Any) -> Any:
  """The loss, scaled for 16-bit gradients: in Keras 2 by an optimizer of its own."""
  if KERAS_3:
    return optimizer.scale_loss(loss)
  if hasattr(optimizer, "get_scaled_loss"):  # With mixed_float16 alone.
    return optimizer.get_scaled_loss(loss)
  return loss


def unscale_gradients(optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any]:
  """The gradients of a scaled loss as the optimizer takes them: Keras 3 divides by the scale itself."""
  if not KERAS_3 and hasattr(optimizer, "get_unscaled_gradients"):
    return optimizer.get_unscaled_gradients(gradients)
  return gradients


def update_metrics(model: Any, loss: Any, x: Any, y: Any, outputs: Any, sample_weight: Any) -> None:
  """Updates mean loss and compiled metrics, on this replica alone: Keras 2 does half of it itself."""
  if KERAS_3:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    rows = tf.shape(tf.nest.flatten(x)[0])[0]
    # `compute_loss` divides by the number of replicas, for a sum over them.
    model._loss_tracker.update_state(loss * replicas, sample_weight=rows)
    model.compute_metrics(x, y, outputs, sample_weight)
  else:
    # `compute_loss` has updated the mean loss. `compute_metrics` would join the replicas, which no
    # loop may.
    model.compiled_metrics.update_state(model.counted(x, y), outputs, sample_weight)


class ModelBase(keras.Model):
  """Compiled with XLA only where `jit_compile=True` is passed.

  Keras 3 chooses it wherever there is a device other than a CPU, also for the host of a TPU, which
  may have no XLA (keras-team/keras#19448).
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self.jit_compile = False

  def compile(self, *args: Any, jit_compile: bool = False, **kwargs: Any) -> None:
    super().compile(*args, jit_compile=jit_compile, **kwargs)

  def compile_from_config(self, config: dict[str, Any]) -> None:
    """As Keras does, which leaves a model that overrides `compile` uncompiled when it is loaded."""
    self.compile(**keras.saving.deserialize_keras_object(config))
    if hasattr(self.optimizer, "build"):  # Keras 2 has older ones that build themselves.
      self.optimizer.build(self.trainable_variables)

  def compute_metrics(
    self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
  ) -> dict[str, Any]:
    return super().compute_metrics(x, self.counted(x, y), y_pred, sample_weight=sample_weight)

  def counted(self, x: Any, y: Any) -> Any:
    """The labels `y` of the inputs `x` as metrics get them."""
    del x
    return y

  def check_single_batches(self) -> None:
    """Raises `UserError` where Keras cannot run one batch by itself: Keras 3 on a TPU."""
    if KERAS_3 and device_kind(self.distribute_strategy) == "tpu":
      raise UserError(
        "On a TPU Keras 3 runs data sets. Received: one batch for train_on_batch, test_on_batch or "
        "predict_on_batch. Call fit, evaluate or predict with it."
      )


class OptimizerBase(keras.optimizers.Optimizer):
  """Keras' optimizer with one constructor and configuration for both stacks."""

  def __init__(self, learning_rate: Any, *, name: str, **kwargs: Any):
    if KERAS_3:
      super().__init__(learning_rate=learning_rate, name=name, **kwargs)
    else:
      super().__init__(name=name, **kwargs)
      self._learning_rate = self._build_learning_rate(learning_rate)

  # Gradients are clipped as they are for the whole batch: dense, and summed over the replicas,
  # once. Keras 2 sums before it clips, but measures lookups' gradients with their repeated rows
  # apart; Keras 3 clips each replica's.
  if KERAS_3:

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
      super().apply([_dense(gradient) for gradient in grads], trainable_variables)

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
      return grads  # Not before they are summed.

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
      gradients, variables = zip(*super()._all_reduce_sum_gradients(grads_and_vars), strict=True)
      return list(zip(super()._clip_gradients(list(gradients)), variables, strict=True))

  else:

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
      dense = [(_dense(gradient), variable) for gradient, variable in grads_and_vars]
      return super().aggregate_gradients(dense)

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    if not KERAS_3:
      config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
    return config


def _dense(gradient: Any) -> Any:
  if gradient is None:
    return None
  return tf.convert_to_tensor(gradient)
