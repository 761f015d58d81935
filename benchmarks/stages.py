"""Runs a command in this process and says when the stages of its start ended; `start_up.py` reads it.

No flags of its own: `python benchmarks/stages.py SCRIPT ARGUMENTS…`. The stages of `run_pretrain.py`: Python and the
flags, the import of TensorFlow, ours, what is built, the trace of the step, its first run (with TensorFlow's own
optimisation of the graph), and the rest, to the end of the command.
"""

import atexit
import os
import runpy
import sys
import time
from typing import Any

MARK = "stage: "
_last = {"wall": time.perf_counter(), "cpu": 0.0}  # The process' time began before this line.


def mark(name: str) -> None:
  now = {"wall": time.perf_counter(), "cpu": time.process_time()}
  print(MARK, name, now["wall"] - _last["wall"], now["cpu"] - _last["cpu"], file=sys.stderr, flush=True)
  _last.update(now)


def watch() -> None:
  """Replaces what begins a stage by the same with a mark."""
  from albert_tf import startup

  load = startup.load_tensorflow

  def load_tensorflow(*args: Any, **kwargs: Any) -> None:
    mark("python")
    load(*args, **kwargs)
    mark("tensorflow")
    from albert_tf.training.pretraining import TrainStep

    mark("import")
    TrainStep.__init__ = _with_marks(TrainStep.__init__)  # type: ignore[method-assign]

  startup.load_tensorflow = load_tensorflow


def _with_marks(initialize: Any) -> Any:
  def initialized(self: Any, *args: Any, **kwargs: Any) -> None:
    initialize(self, *args, **kwargs)
    run = self.run

    def first_run(*args: Any) -> Any:
      mark("build")
      run.get_concrete_function(*args)
      mark("trace")
      metrics = run(*args)
      float(metrics.gradient_norm)  # Waits for the device.
      mark("first_update")
      self.run = run
      return metrics

    self.run = first_run

  return initialized


if __name__ == "__main__":
  sys.argv = sys.argv[1:]
  sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
  if os.path.basename(sys.argv[0]) == "run_pretrain.py":
    watch()
    atexit.register(mark, "rest")
  runpy.run_path(sys.argv[0], run_name="__main__")
