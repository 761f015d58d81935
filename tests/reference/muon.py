"""NumPy twin, in float64, written from the equations: one Muon update of one matrix."""

import numpy as np


def orthogonalized(x, rounds=5):
  """The singular vectors of x; each singular value of x / ‖x‖ through the quintic, `rounds` times."""
  u, values, v = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
  s = values / (np.linalg.norm(values) + 1e-7)
  for _ in range(rounds):
    s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
  return u @ np.diag(s) @ v


def muon_step(p, g, m, *, lr, momentum, wd):
  """Returns new p and m, float64."""
  p, g, m = (np.asarray(x, np.float64) for x in (p, g, m))
  m = momentum * m + (1 - momentum) * g
  direction = orthogonalized(momentum * m + (1 - momentum) * g)
  return p - lr * (0.2 * np.sqrt(max(p.shape)) * direction + wd * p), m
