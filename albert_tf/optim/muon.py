"""The equations of Muon, as pure functions: the update of one matrix, and its direction.

Muon updates the matrices of the encoder's blocks; all other variables take `lamb.lamb_update`. The
optimizers of pretraining (`optimizer.py`) and of `model.compile` (`keras_optimizers.py`) hold the
state and call these.
"""

from collections.abc import Mapping, Sequence
import re
from typing import NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.optim.config import NEWTON_SCHULZ_ROUNDS

# The matrices that Muon updates: the kernels of the encoder's blocks, by their names in checkpoints
# (bert/encoder/transformer/group_0/…/kernel) and by their paths in Keras (encoder/ffn_0_0/…/kernel).
MUON_PATTERN = r"(^|/)(transformer|(attention|ffn)_\d+_\d+)/(.*/)?kernel$"

# a, b and c of the polynomial a s + b s³ + c s⁵. Five rounds bring singular values of 0.01 to 1
# to 0.7 to 1.2. They need not be 1: the exact value does not matter to training.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPSILON = 1e-7  # For a gradient of 0.
# Gives an element of the direction the root mean square of an AdamW update: section 2.2 of 2502.16982.
_SCALE = 0.2


def muon_matrices(
  shapes: Mapping[str, Sequence[int]], pattern: str = MUON_PATTERN
) -> frozenset[str]:
  """The names of the variables that Muon updates; shared parameters have one name.

  Args:
    shapes: name → shape of every variable that is trained.
    pattern: regular expression that such a name has.

  Raises:
    UserError: there is none.

  Example:
    >>> muon_matrices({"encoder/ffn_0_0/intermediate/kernel": (4, 8), "pooler/kernel": (4, 4)})
    frozenset({'encoder/ffn_0_0/intermediate/kernel'})
  """
  matrices = frozenset(
    name for name, shape in shapes.items() if len(shape) == 2 and re.search(pattern, name)
  )
  if not matrices:
    raise UserError(
      f"Muon needs a matrix to update, with a name that has {pattern}. Received: {len(shapes)} "
      "trained variables, of which none is such. Train the encoder's blocks, or take another "
      "optimizer: --optimizer=lamb in pretraining, AdamW in Keras."
    )
  return matrices


class MuonResult(NamedTuple):
  """The result of an update of one matrix; all tensors have its shape."""

  p: tf.Tensor  # New parameter.
  m: tf.Tensor  # New momentum.
  delta: tf.Tensor  # η (u + λ p), what was subtracted from the parameter.


def muon_update(
  p: tf.Tensor,
  g: tf.Tensor,
  m: tf.Tensor,
  *,
  learning_rate: tf.Tensor | float,
  momentum: float,
  weight_decay: float,
  product_dtype: tf.DType = tf.float32,
) -> MuonResult:
  """One Muon update of one matrix.

  m ← μ m + (1 - μ) g;  u = 0.2 √max(rows, columns) orth(μ m + (1 - μ) g);  p ← p - η (u + λ p)

  where orth is `orthogonalized`, and its argument is Nesterov's momentum: one step ahead of m.

  Args:
    p: the parameter, `[rows, columns]`, float32.
    g: its gradient, same shape, already aggregated and clipped.
    m: momentum, same shape, 0 before the first update.
    learning_rate: η, a scalar.
    momentum: μ.
    weight_decay: λ.
    product_dtype: type of the products in `orthogonalized`.

  Example:
    >>> p, g, m = tf.zeros([2, 3]), tf.ones([2, 3]), tf.zeros([2, 3])
    >>> muon_update(p, g, m, learning_rate=0.1, momentum=0.95, weight_decay=0.0).m[0, 0].numpy()
    0.05

  Reference: K. Jordan et al., kellerjordan.github.io/posts/muon; for the factor and the decay
    arXiv 2502.16982, equation 4.
  """
  m = momentum * m + (1.0 - momentum) * g
  ahead = momentum * m + (1.0 - momentum) * g
  rows, columns = p.shape
  u = _SCALE * max(rows, columns) ** 0.5 * orthogonalized(ahead, product_dtype)
  delta = learning_rate * (u + weight_decay * p)
  return MuonResult(p=p - delta, m=m, delta=delta)


def orthogonalized(x: tf.Tensor, product_dtype: tf.DType = tf.float32) -> tf.Tensor:
  """orth(x): the singular vectors of x, with singular values near 1; by Newton-Schulz rounds.

  X ← x / ‖x‖;  five times: A = X Xᵀ, X ← a X + (b A + c A²) X

  A round keeps the singular vectors, and maps each singular value s to a s + b s³ + c s⁵.

  Args:
    x: `[rows, columns]`, float32.
    product_dtype: type of the products. The rounds correct their own rounding, so 16 bits do.

  Returns:
    float32, of the shape of x; 0 where x is 0.
  """
  a, b, c = _COEFFICIENTS
  rows, columns = x.shape
  # A has the size of the shorter side.
  if rows > columns:
    x = tf.transpose(x)
  # Of all singular values together: none is above 1 then.
  x = tf.cast(x / (tf.norm(x) + _EPSILON), product_dtype)
  for _ in range(NEWTON_SCHULZ_ROUNDS):
    gram = tf.matmul(x, x, transpose_b=True)
    x = a * x + tf.matmul(b * gram + c * tf.matmul(gram, gram), x)
  if rows > columns:
    x = tf.transpose(x)
  return tf.cast(x, tf.float32)
