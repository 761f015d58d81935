"""NumPy twins, in float64, written from the equations: one LAMB or AdamW update, and the learning-rate schedule."""

import numpy as np


def lamb_step(
  p, g, m, v, *, lr, t, beta_1=0.9, beta_2=0.999, eps=1e-6, wd=0.01, bias_correction=False, decay=True, adapt=True
):  # fmt: skip
  """Returns new p, m, v, all float64; AdamW is `adapt=False`."""
  p, g, m, v = (np.asarray(x, np.float64) for x in (p, g, m, v))
  m = beta_1 * m + (1 - beta_1) * g
  v = beta_2 * v + (1 - beta_2) * g * g
  m_hat = m / (1 - beta_1**t) if bias_correction else m
  v_hat = v / (1 - beta_2**t) if bias_correction else v
  u = m_hat / (np.sqrt(v_hat) + eps)
  if decay:
    u = u + wd * p
  ratio = 1.0
  if adapt:
    p_norm, u_norm = np.sqrt(np.sum(p * p)), np.sqrt(np.sum(u * u))
    if p_norm > 0 and u_norm > 0:
      ratio = p_norm / u_norm
  return p - lr * ratio * u, m, v


def rate(t, *, peak, total, warmup, start=0, power=1.0, end=0.0, original=False):
  """The rate of update number t, counted from 1."""
  if t <= start:
    return 0.0
  if t - start < warmup:
    return peak * (t - start) / warmup
  origin = 0 if original else start + warmup
  if total == origin:
    return peak if t <= total else end
  share = min(max((t - origin) / (total - origin), 0.0), 1.0)
  return end + (peak - end) * (1.0 - share) ** power
