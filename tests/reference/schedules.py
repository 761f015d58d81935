"""NumPy twin of the learning-rate schedule: one update at a time, plain branches."""


def rate(t, *, peak, total, warmup, start=0, power=1.0, end=0.0, original=False):
  """The rate of update number t, counted from 1."""
  if t <= start and (warmup > 0 or t <= start):
    return 0.0
  if t - start < warmup:
    return peak * (t - start) / warmup
  origin = 0 if original else start + warmup
  if total == origin:
    return peak if t <= total else end
  share = min(max((t - origin) / (total - origin), 0.0), 1.0)
  return end + (peak - end) * (1.0 - share) ** power
