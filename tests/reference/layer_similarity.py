"""NumPy twin of `albert_tf.modeling.layer_similarity`, by the arc cosine in float64."""

import numpy as np


def layer_similarity(x_in: np.ndarray, x_out: np.ndarray, mask: np.ndarray) -> tuple[float, float]:
  """Mean L2 distance and angle in degrees over the positions with mask 1; `[B, S, H]`, `[B, S]`."""
  distances, angles = [], []
  for row, position in np.argwhere(mask):
    a, b = (x[row, position].astype(np.float64) for x in (x_in, x_out))
    cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
    distances.append(np.linalg.norm(b - a))
    angles.append(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))
  return float(np.mean(distances)), float(np.mean(angles))
