"""The largest batch that fits a core: led by the formula, checked by the compiler."""

from collections.abc import Callable
from typing import NamedTuple

from albert_tf.configs import AlbertConfig
from albert_tf.planning.chips import Topology
from albert_tf.planning.estimate import StepShape, estimate_step

ALL_CORES, ONE_CORE, FORMULA = "compiler, all cores", "compiler, one core", "formula"
TWO_DEPTHS = ", two depths"  # After either of the first two.
_SEARCH_LIMIT = 1 << 14  # Examples a core; no chip holds more.
FORMULA_ERROR = (
  0.17  # Of memory, relative, on programs that it was not fitted to (tests/planning/test_estimate.py).
)


class Figures(NamedTuple):
  """One core's step.

  Attributes:
    source: who says so: the compiler, of all cores together or of one, or `FORMULA`; with `TWO_DEPTHS` a few layers
      were compiled and the rest is by proportion.
    required_bytes: all memory of the step: weights, moments, batch, temporaries.
    temporary_bytes: activations, gradients and scratch; 0 where the compiler did not say.
    cycles: of the core's clock, in one step, without waiting for other cores.
    compile_seconds: 0 for a formula.
    refused: whether the compiler refused the program for want of memory.
    loops_counted_once: loops in `cycles` whose number of runs is not known.
    all_reduces: sums over all cores in the compiled program; 0 where it is that of one core, or a formula's.
    all_reduce_bytes: that they sum, on one core.
    all_reduce_seconds: that a core waits for them with nothing to compute.
    note: why all cores together were not compiled.
  """

  source: str
  required_bytes: int
  temporary_bytes: int
  cycles: float
  compile_seconds: float = 0.0
  refused: bool = False
  loops_counted_once: int = 0
  all_reduces: int = 0
  all_reduce_bytes: int = 0
  all_reduce_seconds: float = 0.0
  note: str = ""


# Compiles one shape; None where it is not to be compiled, for want of a compiler or of time.
CompileStep = Callable[[StepShape], Figures | None]


class Judge:
  """Figures of a model's steps on one chip: compiled while that is affordable, else by formula.

  The formula is scaled to the nearest compiled shape of the same kind, once there is one.

  Args:
    config: the architecture.
    topology: the slice.
    compile_step: compiles one shape; None for formulas only.
    compiles: how many shapes may be compiled; None for any number.
  """

  def __init__(
    self,
    config: AlbertConfig,
    topology: Topology,
    *,
    compile_step: CompileStep | None = None,
    compiles: int | None = None,
  ):
    self.config = config
    self.topology = topology
    self.available_bytes = topology.chip.hbm_bytes
    self._compile_step = compile_step
    self._left = compiles
    self._known: dict[StepShape, Figures] = {}

  def fits(self, figures: Figures) -> bool:
    """Whether the step fits: the compiler's own word where it compiled the whole step, else by bytes."""
    if figures.source in (ALL_CORES, ONE_CORE):
      return not figures.refused
    return not figures.refused and figures.required_bytes <= self.available_bytes

  def compiled(self, shape: StepShape) -> Figures | None:
    """The compiler's figures; None where there is no compiler or no compile is left."""
    if shape in self._known:
      return self._known[shape]
    if self._compile_step is None or self._left == 0:
      return None
    if self._left is not None:
      self._left -= 1
    figures = self._compile_step(shape)
    if figures is not None:
      self._known[shape] = figures
    return figures

  def stop_compiling(self) -> None:
    """What was not compiled yet is by formula from now on."""
    self._left = 0

  def estimated(self, shape: StepShape) -> Figures:
    """The formula's figures, scaled to the nearest compiled shape that differs in the batch alone."""
    estimate = estimate_step(self.config, shape, self.topology.chip)
    memory, time = 1.0, 1.0
    near = self._nearest(shape)
    if near is not None:
      base, found = estimate_step(self.config, near, self.topology.chip), self._known[near]
      resident = base.argument_bytes
      memory = max(found.required_bytes - resident, 1) / base.temporary_bytes
      time = found.cycles / base.cycles if found.cycles else 1.0
    temporary = int(estimate.temporary_bytes * memory)
    # The same gradients are summed, whatever the step.
    sums = next((figures for figures in self._known.values() if figures.all_reduces), None)
    return Figures(
      source=FORMULA,
      required_bytes=estimate.argument_bytes + temporary,
      temporary_bytes=temporary,
      cycles=estimate.cycles * time,
      all_reduces=sums.all_reduces if sums else 0,
      all_reduce_bytes=sums.all_reduce_bytes if sums else 0,
      all_reduce_seconds=sums.all_reduce_seconds if sums else 0.0,
    )

  def best(self, shape: StepShape) -> Figures:
    return self.compiled(shape) or self.estimated(shape)

  def has_figures(self, shape: StepShape) -> bool:
    """Whether a shape that differs in the batch alone was compiled, and told its memory."""
    return self._nearest(shape) is not None

  def _nearest(self, shape: StepShape) -> StepShape | None:
    same = [
      known
      for known, figures in self._known.items()
      # Short of memory the compiler squeezes a program: what it needs then says nothing of another batch.
      if not figures.refused
      and known.replace(per_core_batch_size=1, gradient_accumulation_steps=1)
      == shape.replace(per_core_batch_size=1, gradient_accumulation_steps=1)
    ]
    size = shape.per_core_batch_size
    return min(
      same,
      key=lambda s: max(s.per_core_batch_size / size, size / s.per_core_batch_size),
      default=None,
    )


class LargestBatch(NamedTuple):
  """The largest batch of a core that fits.

  Attributes:
    examples: 0 where not even one example fits.
    figures: of that batch.
    next_too_large: the smallest batch that is known not to fit; None where none was tried.
  """

  examples: int
  figures: Figures | None
  next_too_large: int | None


def largest_batch(judge: Judge, shape: StepShape) -> LargestBatch:
  """The largest batch a core that fits: led by the formula, checked by the compiler while that is affordable.

  A program that is short of memory is squeezed by the compiler, which recomputes what it cannot keep. The batch
  meant here needs none of that: where the compiler accepts what the formula, scaled to it, thinks is largest, the
  search ends.
  """
  low, high, bound = 0, _SEARCH_LIMIT, _SEARCH_LIMIT
  while high - low > 1:
    guess = min(_largest_by_formula(judge, shape, low, high), bound)
    if guess <= low and low:
      break
    guess = max(guess, 1)
    figures = judge.compiled(shape.replace(per_core_batch_size=guess))
    if figures is None:
      break
    if judge.fits(figures):
      low, bound = guess, high
    else:  # A refusal does not say by how much: with no figures to go by, try half.
      high = guess
      bound = high - max(1, high // 16) if judge.has_figures(shape) else high // 2
  guess = _largest_by_formula(judge, shape, low, high)
  too_large = high if high < _SEARCH_LIMIT else None
  if not guess:
    return LargestBatch(0, None, too_large)
  if guess == low:
    return LargestBatch(low, judge.best(shape.replace(per_core_batch_size=low)), too_large)
  return LargestBatch(guess, judge.estimated(shape.replace(per_core_batch_size=guess)), too_large)


def _largest_by_formula(judge: Judge, shape: StepShape, low: int, high: int) -> int:
  """The largest batch below `high` that the formula thinks fits, or `low` where it thinks that no larger one does."""
  while high - low > 1:
    middle = (low + high) // 2
    if judge.fits(judge.estimated(shape.replace(per_core_batch_size=middle))):
      low = middle
    else:
      high = middle
  return low
