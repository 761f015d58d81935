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
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import IO, Any, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from absl import flags
import common
import keras
from step_contenders import FLOOR, FLOPS_MARK, Batch, Step, Work, contenders

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

_MARK, _MEMORY_MARK = "step: ", "peak bytes: "


class Worker:
  """A contender in a process of its own, so that thread pools of several frameworks do not disturb each other."""

  def __init__(self, name: str, arguments: Sequence[str]):
    command = [sys.executable, *arguments, f"--worker={name}"]
    self._process = subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    self.flops = 0.0  # Operations of a step's matrix products, where they can be counted.

  def step(self) -> tuple[float, float, float]:
    """Runs one step: (seconds, seconds of CPU over all threads, loss)."""
    requests, answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
    print("step", file=requests, flush=True)
    for line in answers:
      if line.startswith(_MARK):
        seconds, cpu_seconds, loss = map(float, line.removeprefix(_MARK).split())
        return seconds, cpu_seconds, loss
      if line.startswith(FLOPS_MARK):
        self.flops = float(line.removeprefix(FLOPS_MARK))
    raise RuntimeError(
      f"A contender ended early, with status {self._process.wait()}; its error is above."
    )

  def close(self) -> float:
    """Ends it; returns the most memory that it held, in GiB."""
    written, _ = self._process.communicate(timeout=300)
    (line,) = [line for line in written.splitlines() if line.startswith(_MEMORY_MARK)]
    return round(int(line.removeprefix(_MEMORY_MARK)) / 2**30, 2)


def work(make: Callable[[], Step]) -> None:
  """The worker's side: a step and its time for each line of standard input."""
  step = make()
  for _ in sys.stdin:
    started, cpu_started = time.perf_counter(), time.process_time()
    loss = float(step())
    print(_MARK, time.perf_counter() - started, time.process_time() - cpu_started, loss, flush=True)
  kibibyte = 1 if sys.platform == "darwin" else 1024  # The unit of ru_maxrss.
  print(_MEMORY_MARK, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibibyte, flush=True)


def measure(workers: dict[str, Worker], rounds: int) -> dict[str, dict[str, float]]:
  """Seconds of a step, the contenders taking turns so that a busy machine slows all alike."""
  results: dict[str, dict[str, float]] = {}
  for name, worker in workers.items():
    seconds, _, loss = worker.step()
    results[name] = {"first_step_s": round(seconds, 2), "first_loss": round(loss, 4)}
    worker.step()  # Warm-up.
  for name, measured in common.in_turn(
    {name: worker.step for name, worker in workers.items()}, rounds
  ).items():
    wall, cpu = [m[0] for m in measured], min(m[1] for m in measured)
    results[name] |= {"median_s": round(statistics.median(wall), 4), "best_s": round(min(wall), 4)}
    results[name]["cpu_s"] = round(
      cpu, 4
    )  # Says more than the wall clock when others use the machine.
  return results


def compare(
  results: Mapping[str, Mapping[str, float]], workers: Mapping[str, Worker], key: str
) -> Any:
  """A precision: the rate of the products, our floor by it, and how much longer than that ours and others take."""
  seconds = {name: values[key] for name, values in results.items()}
  ours = {name: value for name, value in seconds.items() if name.startswith("albert_tf")}
  best = min(ours.values(), default=math.nan)
  found: dict[str, Any] = {
    "over_ours": {
      name: round(value / best, 2)
      for name, value in seconds.items()
      if name != FLOOR and name not in ours
    }
  }
  if FLOOR in seconds and ours:
    rate = workers[FLOOR].flops / seconds[FLOOR]
    floor = min(workers[name].flops for name in ours) / rate
    found |= {"gflop_per_s": round(rate / 1e9, 1), "floor_s": round(floor, 4)}
    found["over_floor"] = {name: round(value / floor, 2) for name, value in ours.items()}
  return found


def benchmark() -> dict[str, Any] | None:
  config = AlbertConfig.from_name(_SIZE.value)
  batch = Batch(config, (_BATCH_SIZE.value, _MAX_SEQ_LENGTH.value), _PREDICTIONS.value)
  if _WORKER.value:
    name, dtype = _WORKER.value.split(".")
    if dtype != "float32":
      keras.mixed_precision.set_global_policy(f"mixed_{dtype}")
    make = contenders(Work(config, batch, dtype))[name]
    assert callable(make)
    work(make)
    return None
  if set(_DTYPE.value) - {"float32", "bfloat16"}:
    raise UserError(f"--dtype takes float32, bfloat16. Received: {', '.join(_DTYPE.value)}.")
  left_out, workers = {}, {}
  offers = {dtype: contenders(Work(config, batch, dtype)) for dtype in _DTYPE.value}
  known = list(dict.fromkeys(name for offered in offers.values() for name in offered))
  unknown = sorted(set(_ONLY.value) - set(known))
  if unknown:
    raise UserError(f"--only takes {', '.join(known)}. Received: {', '.join(unknown)}.")
  for dtype, offered in offers.items():
    for name, make in offered.items():
      if isinstance(make, str):
        left_out[name] = make
      elif not _ONLY.value or name in (FLOOR, *_ONLY.value):
        workers[f"{name}.{dtype}"] = Worker(f"{name}.{dtype}", sys.argv)
  results = measure(workers, _ROUNDS.value)
  for name, worker in workers.items():
    results[name]["peak_gib"] = worker.close()
  shown: dict[str, Any] = {}
  for dtype in _DTYPE.value:
    within = {name.split(".")[0]: name for name in workers if name.endswith(f".{dtype}")}
    values = {short: results[name] for short, name in within.items()}
    some = {short: workers[name] for short, name in within.items()}
    shown[dtype] = {"steps": values} | {
      key: compare(values, some, key) for key in ("best_s", "cpu_s")
    }
  return {
    "size": _SIZE.value,
    "stack": STACK,
    "batch_size": _BATCH_SIZE.value,
    "max_seq_length": _MAX_SEQ_LENGTH.value,
    "cpu_count": os.cpu_count(),
    **shown,
    "left_out": left_out,
  }


if __name__ == "__main__":
  common.run(benchmark)
