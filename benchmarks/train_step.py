"""A training step of ALBERT here and in other packages: same size, batch, length and machine, in one run.

Prints one JSON line, with the most memory that each process held. Three claims: the distance of our step on the CPU
from its floor, the time of its matrix products alone at the rate that TensorFlow's own product reaches in the same
minutes; its lead over Hugging Face (PyTorch) and Keras Hub in the same
precision; and what bfloat16 gains. Packages that are not installed are named and left out.

A step is of pretraining: logits at the masked positions alone and, but for Keras Hub, which has no such head,
sentences. How much a package computes for the same loss is its own affair: ours leaves out what nobody reads of the
last block.

Example:
  python benchmarks/train_step.py --size=base --batch_size=4 --max_seq_length=128 --dtype=float32,bfloat16
"""

from collections.abc import Callable, Mapping, Sequence
import json
import os
import resource
import statistics
import subprocess
import sys
from typing import IO, Any, NamedTuple, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from absl import flags
import keras
import measuring
import step_contenders
from step_contenders import FLOOR, Contender, Work

from albert_tf.compat import STACK
from albert_tf.configs import SIZES, AlbertConfig
from albert_tf.errors import UserError

_SIZE = flags.DEFINE_enum("size", "base", list(SIZES), "The model.")
_DTYPE = flags.DEFINE_list(
  "dtype", ["float32"], "Precisions, each with its floor: float32, bfloat16."
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4, "Examples of a step.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length", 128, "Tokens of an example.", lower_bound=8
)
_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq", 20, "Masked tokens of an example.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer(
  "rounds", 5, "Timed steps of each; contenders take turns.", lower_bound=1
)
_WORKER = flags.DEFINE_string(
  "worker", "", "Internal: run NAME.DTYPE, one step a line of standard input."
)
_ONLY = flags.DEFINE_list("only", [], "Contenders to run; empty: all that are installed.")

_DTYPES = ("float32", "bfloat16")
_MARK = "worker: "  # At the start of a worker's answers: packages print lines of their own.
_BYTES_OF_MAXRSS = 1 if sys.platform == "darwin" else 1024  # The unit that the system counts in.


def _measure() -> Mapping[str, Any] | None:
  if _WORKER.value:
    name, dtype = _WORKER.value.split(".")
    _work(name, dtype)
    return None
  if set(_DTYPE.value) - set(_DTYPES):
    raise UserError(f"--dtype takes {', '.join(_DTYPES)}. Received: {', '.join(_DTYPE.value)}.")

  # What is installed here, and why the rest is left out.
  offers = {dtype: step_contenders.offers(_work_of(dtype)) for dtype in _DTYPE.value}
  left_out: dict[str, str] = {}
  for of_dtype in offers.values():
    left_out |= of_dtype.left_out
  _check_only([name for of_dtype in offers.values() for name in of_dtype.makers])

  # Workers of all precisions take turns, so that what bfloat16 gains is measured too.
  workers = {}
  for dtype, of_dtype in offers.items():
    for name in of_dtype.makers:
      # The floor runs always: a step is compared with it.
      if not _ONLY.value or name in _ONLY.value or name == FLOOR:
        workers[f"{name}.{dtype}"] = Worker(f"{name}.{dtype}", sys.argv)
  results = _time_steps(workers)
  figures = {
    "size": _SIZE.value,
    "stack": STACK,
    "batch_size": _BATCH_SIZE.value,
    "max_seq_length": _MAX_SEQ_LENGTH.value,
    "cpu_count": os.cpu_count(),
  }
  for dtype in _DTYPE.value:
    figures[dtype] = _figures_of_dtype(results, dtype)
  figures["left_out"] = left_out
  return figures


def _work_of(dtype: str) -> Work:
  config = AlbertConfig.from_name(_SIZE.value)
  batch = step_contenders.random_batch(
    config,
    size=_BATCH_SIZE.value,
    length=_MAX_SEQ_LENGTH.value,
    num_predictions=_PREDICTIONS.value,
  )
  return Work(config, batch, dtype)


def _check_only(names: Sequence[str]) -> None:
  unknown = sorted(set(_ONLY.value) - set(names))
  if unknown:
    known = ", ".join(dict.fromkeys(names))
    raise UserError(f"--only takes {known}. Received: {', '.join(unknown)}.")


# ---------------------------------------------------------------------- processes


class Worker:
  """A contender in a process of its own, so that thread pools of several frameworks do not disturb each other."""

  def __init__(self, name: str, arguments: Sequence[str]):
    # This command again, with the flags it was given.
    command = [sys.executable] + list(arguments) + [f"--worker={name}"]
    self._process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    self.flops: float = self._answer()["flops"]

  def step(self) -> dict[str, float]:
    """Runs one step: its seconds by both clocks ("wall", "cpu"), and its "loss"."""
    print("step", file=cast(IO[str], self._process.stdin), flush=True)
    return self._answer()

  def close(self) -> float:
    """Ends the process; returns the most memory that it held, in GiB."""
    # The end of its input is the end of its loop.
    cast(IO[str], self._process.stdin).close()
    peak_bytes = self._answer()["peak_bytes"]
    self._process.wait(timeout=300)
    return round(peak_bytes / 2**30, 2)

  def _answer(self) -> dict[str, float]:
    for line in cast(IO[str], self._process.stdout):
      if line.startswith(_MARK):
        answer: dict[str, float] = json.loads(line.removeprefix(_MARK))
        return answer
    raise RuntimeError(
      f"A contender ended early, with status {self._process.wait()}; its error is above."
    )


def _work(name: str, dtype: str) -> None:
  """The worker's side: a step for each line of standard input."""
  # Before a layer is made. PyTorch's contender reads its precision from `Work`.
  if dtype != "float32":
    keras.mixed_precision.set_global_policy(f"mixed_{dtype}")
  contender = step_contenders.offers(_work_of(dtype)).makers[name]()
  _tell(flops=contender.flops)
  for _ in sys.stdin:
    _tell(**_timed_step(contender))
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  _tell(peak_bytes=peak * _BYTES_OF_MAXRSS)


def _timed_step(contender: Contender) -> dict[str, float]:
  loss = 0.0

  def step() -> None:
    nonlocal loss
    loss = float(contender.step())

  times = measuring.timed(step)
  return {"wall": times.wall, "cpu": times.cpu, "loss": loss}


def _tell(**values: float) -> None:
  print(_MARK + json.dumps(values), flush=True)


# ---------------------------------------------------------------------- figures


class Result(NamedTuple):
  """A contender's steps."""

  first_seconds: float  # The first step compiles, where a package does so.
  first_loss: float
  median_seconds: float
  best: measuring.Times
  flops: float
  peak_gib: float


def _time_steps(workers: Mapping[str, Worker]) -> dict[str, Result]:
  """Results by the worker's name; the workers take turns."""
  first = {name: worker.step() for name, worker in workers.items()}
  for worker in workers.values():
    worker.step()  # Warm-up.
  steps = {name: worker.step for name, worker in workers.items()}
  results = {}
  for name, answers in measuring.in_turn(steps, _ROUNDS.value).items():
    times = [measuring.Times(answer["wall"], answer["cpu"]) for answer in answers]
    results[name] = Result(
      first_seconds=first[name]["wall"],
      first_loss=first[name]["loss"],
      median_seconds=statistics.median(of_step.wall for of_step in times),
      best=measuring.best(times),
      flops=workers[name].flops,
      peak_gib=workers[name].close(),
    )
  return results


def _figures_of_dtype(results: Mapping[str, Result], dtype: str) -> dict[str, Any]:
  """The steps of a precision, and how they compare by both clocks."""
  of_dtype = {
    name.removesuffix(f".{dtype}"): result
    for name, result in results.items()
    if name.endswith(f".{dtype}")
  }
  steps = {
    name: {
      "first_step_s": round(result.first_seconds, 2),
      "first_loss": round(result.first_loss, 4),
      "median_s": round(result.median_seconds, 4),
      "best_s": round(result.best.wall, 4),
      # Says more than the wall clock when others use the machine.
      "cpu_s": round(result.best.cpu, 4),
      "peak_gib": result.peak_gib,
    }
    for name, result in of_dtype.items()
  }
  return {
    "steps": steps,
    "best_s": _compared(of_dtype, lambda result: result.best.wall),
    "cpu_s": _compared(of_dtype, lambda result: result.best.cpu),
  }


def _compared(
  results: Mapping[str, Result], seconds_of: Callable[[Result], float]
) -> dict[str, Any]:
  """How much longer others take than our best step, and ours than its floor."""
  seconds = {name: seconds_of(result) for name, result in results.items()}
  ours = [name for name in seconds if name.startswith("albert_tf")]
  if not ours:
    return {}
  # With XLA or without: a user takes the quicker one.
  best = min(seconds[name] for name in ours)
  over_ours = {
    name: round(seconds[name] / best, 2) for name in seconds if name != FLOOR and name not in ours
  }
  compared: dict[str, Any] = {"over_ours": over_ours}
  if FLOOR in seconds:
    # The rate of plain products, and the time of our step's products at that rate.
    rate = results[FLOOR].flops / seconds[FLOOR]
    floor_seconds = min(results[name].flops for name in ours) / rate
    compared["gflop_per_s"] = round(rate / 1e9, 1)
    compared["floor_s"] = round(floor_seconds, 4)
    compared["over_floor"] = {name: round(seconds[name] / floor_seconds, 2) for name in ours}
  return compared


if __name__ == "__main__":
  measuring.run(_measure)
