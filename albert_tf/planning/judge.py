"""Who says what a step needs, the compiler or the formula; and the largest batch by both."""

from collections.abc import Callable
from typing import NamedTuple

from albert_tf.configs import AlbertConfig
from albert_tf.planning.chips import Topology
from albert_tf.planning.estimate import MEMORY_ERROR, StepShape, estimate_step
from albert_tf.planning.step_compiler import ALL_CORES, FORMULA, ONE_CORE, Figures

_SEARCH_LIMIT = 1 << 14  # Examples a core; no chip holds more.

# Compiles one shape; None where it is not to be compiled, for want of a compiler or of time.
CompileStep = Callable[[StepShape], Figures | None]


class Judge:
  """Figures of a model's steps on one chip: compiled while that is affordable, else by formula.

  Args:
    config: the architecture.
    topology: the slice.
    compile_step: compiles one shape; None for formulas only.
    compiles: how many more shapes may be compiled; None for any number.
  """

  def __init__(
    self,
    config: AlbertConfig,
    topology: Topology,
    *,
    compile_step: CompileStep | None = None,
    compiles: int | None = None,
  ):
    self.config, self.topology, self.compiles = config, topology, compiles
    self.available_bytes = topology.chip.hbm_bytes
    self._compile_step = compile_step
    self._known: dict[StepShape, Figures] = {}

  def fits(self, figures: Figures, *, error: float = 0.0) -> bool:
    """The compiler's own word where it compiled the whole step; else by bytes, and `error` of them more."""
    if figures.refused or figures.source in (ALL_CORES, ONE_CORE):
      return not figures.refused
    return figures.required_bytes * (1 + error) <= self.available_bytes

  def surely_fits(self, shape: StepShape) -> bool:
    """Whether a step fits by formula also if that errs by as much as it did at worst."""
    return self.fits(self.estimated(shape), error=MEMORY_ERROR)

  def best(self, shape: StepShape) -> Figures:
    return self.compiled(shape) or self.estimated(shape)

  def compiled(self, shape: StepShape) -> Figures | None:
    """The compiler's figures; None where there is no compiler or no compile is left."""
    if shape in self._known:
      return self._known[shape]
    if self._compile_step is None or self.compiles == 0:
      return None
    if self.compiles is not None:
      self.compiles -= 1
    figures = self._compile_step(shape)
    if figures is not None:
      self._known[shape] = figures
    return figures

  def estimated(self, shape: StepShape) -> Figures:
    """The formula's figures, scaled to the nearest compiled shape that differs in the batch alone."""
    estimate = estimate_step(self.config, shape, self.topology.chip)
    memory, time = 1.0, 1.0
    near = self.nearest(shape)
    if near is not None:
      base, found = estimate_step(self.config, near, self.topology.chip), self._known[near]
      memory = max(found.required_bytes - base.argument_bytes, 1) / base.temporary_bytes
      time = found.cycles / base.cycles if found.cycles else 1.0
    temporary = int(estimate.temporary_bytes * memory)
    figures = Figures(FORMULA, estimate.argument_bytes + temporary, temporary, cycles=estimate.cycles * time)
    # The same gradients are summed, whatever the step.
    sums = next((known for known in self._known.values() if known.all_reduces), figures)
    return figures._replace(
      all_reduces=sums.all_reduces,
      all_reduce_bytes=sums.all_reduce_bytes,
      all_reduce_seconds=sums.all_reduce_seconds,
    )

  def nearest(self, shape: StepShape) -> StepShape | None:
    """The compiled shape that differs in the batch alone, and in that least."""

    def kind(shape: StepShape) -> StepShape:
      return shape.replace(per_core_batch_size=1, gradient_accumulation_steps=1)

    size = shape.per_core_batch_size
    # Short of memory the compiler squeezes a program: what it needs then says nothing of another batch.
    same = [
      each for each, figures in self._known.items() if not figures.refused and kind(each) == kind(shape)
    ]
    return min(
      same, key=lambda s: max(s.per_core_batch_size / size, size / s.per_core_batch_size), default=None
    )


class LargestBatch(NamedTuple):
  """The largest batch of a core that fits."""

  examples: int  # 0 where not even one example fits.
  figures: Figures | None  # Of that batch.
  next_too_large: int | None  # The smallest batch that is known not to fit; None where none was tried.


def largest_batch(judge: Judge, shape: StepShape) -> LargestBatch:
  """The largest batch a core that fits: led by the formula, checked by the compiler while that is affordable.

  A program that is short of memory is squeezed by the compiler, which recomputes what it cannot keep. The batch
  meant here needs none of that: where the compiler accepts what the formula, scaled to it, thinks is largest, the
  search ends.
  """
  low, high, bound = 0, _SEARCH_LIMIT, _SEARCH_LIMIT
  while high - low > 1:
    guess = max(min(_largest_by_formula(judge, shape, low, high), bound), 1)
    if guess <= low:
      break
    figures = judge.compiled(shape.replace(per_core_batch_size=guess))
    if figures is None:
      break
    if judge.fits(figures):
      low, bound = guess, high
    else:  # A refusal does not say by how much: with no figures to go by, try half.
      high = guess
      bound = high // 2 if judge.nearest(shape) is None else high - max(1, high // 16)
  too_large = high if high < _SEARCH_LIMIT else None
  guess = _largest_by_formula(judge, shape, low, high)
  if not guess:
    return LargestBatch(0, None, too_large)
  found = shape.replace(per_core_batch_size=guess)
  return LargestBatch(guess, judge.best(found) if guess == low else judge.estimated(found), too_large)


def _largest_by_formula(judge: Judge, shape: StepShape, low: int, high: int) -> int:
  """The largest batch below `high` that the formula thinks fits, or `low` where it thinks that no larger one does."""
  while high - low > 1:
    middle = (low + high) // 2
    if judge.fits(judge.estimated(shape.replace(per_core_batch_size=middle))):
      low = middle
    else:
      high = middle
  return low
