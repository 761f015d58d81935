"""What rematerialisation and the loop over layers cost and save: compile time, memory, time of a step.

Prints one JSON line. Each option runs in a process of its own, so that its peak memory is its own.

  unrolled  the shared block repeated in the graph, all activations kept
  remat     the same, each block's activations computed again in the backward pass
  while     the block in a loop
  remat_while  both

Example:
  python benchmarks/memory_options.py --size=base --batch_size=2 --max_seq_length=512
"""

from collections.abc import Sequence
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags
import numpy as np
import tensorflow as tf

from albert_tf.compat import STACK
from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.modeling import AlbertEncoder, initialize_variables, named_variables

OPTIONS: dict[str, dict[str, Any]] = {
  "unrolled": {},
  "remat": {"remat": True},
  "while": {"layer_loop": "while"},
  "remat_while": {"remat": True, "layer_loop": "while"},
}

_SIZE = flags.DEFINE_enum("size", "base", named_sizes(), "The model.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 2, "Examples of a step.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Pieces of an example.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Timed steps of each.", lower_bound=1)
_XLA = flags.DEFINE_list("xla", ["false", "true"], "With TensorFlow's own kernels, with XLA, or both.")
_WORKER = flags.DEFINE_string("worker", "", "Internal: measure this option in this process.")


def peak_mebibytes() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(option: str, *, jit: bool) -> dict[str, float]:
  """Gradients of the encoder, summed to a scalar so that nothing else takes memory."""
  encoder = AlbertEncoder(AlbertConfig.from_name(_SIZE.value), **OPTIONS[option])
  variables = named_variables(encoder)
  initialize_variables(variables, seed=0, initializer_range=0.02)
  rng = np.random.default_rng(0)
  ids = rng.integers(5, encoder.config.vocab_size, size=(_BATCH_SIZE.value, _MAX_SEQ_LENGTH.value))
  ids = tf.constant(ids, tf.int32)

  @tf.function(jit_compile=jit)
  def step(ids: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(encoder({"input_ids": ids}, training=True)["pooled_output"]))
    gradients = tape.gradient(loss, list(variables.values()))
    return tf.add_n([tf.reduce_sum(tf.square(tf.convert_to_tensor(gradient))) for gradient in gradients])

  before = peak_mebibytes()
  started = time.perf_counter()
  concrete = step.get_concrete_function(tf.TensorSpec(ids.shape, ids.dtype))
  traced = time.perf_counter()
  norm = float(step(ids))
  first = time.perf_counter()
  times, cpu = [], []
  for _ in range(_ROUNDS.value):
    round_started, cpu_started = time.perf_counter(), time.process_time()
    step(ids).numpy()
    times.append(time.perf_counter() - round_started)
    cpu.append(time.process_time() - cpu_started)
  best = min(times)
  return {
    "trace_s": round(traced - started, 2),
    "compile_s": round(max(first - traced - best, 0.0), 2),
    "graph_nodes": len(concrete.graph.as_graph_def().node),
    "step_s": round(best, 3),
    "step_cpu_s": round(statistics.median(cpu), 3),
    "step_memory_mib": round(peak_mebibytes() - before),
    "gradient_norm_squared": norm,
  }


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"Only flags are understood. Received: {' '.join(argv[1:])}. See --help.")
  if set(_XLA.value) - {"false", "true"}:
    raise UserError(f"--xla takes false, true or both. Received: {','.join(_XLA.value)}.")
  if _WORKER.value:
    option, jit = _WORKER.value.split(":")
    print(json.dumps(measure(option, jit=jit == "true")))
    return
  results: dict[str, dict[str, float]] = {}
  for jit in _XLA.value:
    for option in OPTIONS:
      command = [sys.executable, *sys.argv, f"--worker={option}:{jit}"]
      done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
      results[f"{option}{'_xla' if jit == 'true' else ''}"] = json.loads(done.stdout.splitlines()[-1])
  report: dict[str, Any] = {"benchmark": "memory_options", "size": _SIZE.value, "stack": STACK}
  report |= {
    "cpu_count": os.cpu_count(),
    "batch_size": _BATCH_SIZE.value,
    "max_seq_length": _MAX_SEQ_LENGTH.value,
    "options": results,
  }
  print(json.dumps(report))


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
