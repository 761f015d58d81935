"""Runs a command of tpu_scripts on an emulated TPU: `--tpu=local`, or `--tpu=grpc://…` with the addresses of hosts.

One process runs the command several times, so that TensorFlow is loaded once. Standard output ends with one JSON
line: of every run its exit status (or traceback), what it printed, and what its TPU programs contain.

Usage, with the repository and tests/ in PYTHONPATH:
  python -m support.tpu.command run run_pretrain '[{"cores": 8, "flags": ["--tpu=local", …]}, …]'
  python -m support.tpu.command host 127.0.0.1:2001,127.0.0.1:2002 INDEX CORES   # A host of a slice, until ended.
"""

from collections.abc import Sequence
import gc
import importlib
import json
import os
import sys
from typing import Any

from support.commands.script_runs import SCRIPT_FOLDERS, run_once

from albert_tf import tpu_host


def run(script: str, runs: Sequence[dict[str, Any]]) -> None:
  """Runs `script` with the flags of each of `runs`; those without `--tpu` run on the host's CPU."""
  sys.path[:0] = SCRIPT_FOLDERS
  from albert_tf.cli.commands import load_tensorflow

  load_tensorflow()
  from support.curves import draw_nothing
  from support.tpu.emulator import TpuEmulator
  from support.tpu.programs import describe

  from albert_tf.pretraining import reporter

  reporter.draw_curves = draw_nothing
  module = importlib.import_module(script)
  gc.freeze()
  gc.set_threshold(20_000, 20, 20)  # As tests/conftest.py.
  emulator = TpuEmulator(max(each["cores"] for each in runs))
  results = []
  for each in runs:
    emulator.cores = each["cores"]
    emulator.programs.clear()
    found = run_once(module, each["flags"])
    programs = [describe(program) for program in emulator.programs]
    results.append({**found._asdict(), "programs": programs})
  print(json.dumps(results))


def host(addresses: str, index: int, cores: int) -> None:
  """Serves as one host of a slice until the process ends; prints a line when it listens."""
  tpu_host.prepare_import("")
  import tensorflow as tf

  server = tf.distribute.Server(
    tf.train.ClusterSpec({"worker": addresses.split(",")}),
    job_name="worker",
    task_index=index,
    protocol="grpc",
    config=tf.compat.v1.ConfigProto(device_count={"CPU": cores + 1}),
  )
  print("listening at", server.target, flush=True)
  server.join()


if __name__ == "__main__":
  arguments = sys.argv[1:]
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  os.environ.update(CUDA_VISIBLE_DEVICES="-1")
  if arguments[0] == "host":
    host(arguments[1], int(arguments[2]), int(arguments[3]))
  else:
    run(arguments[1], json.loads(arguments[2]))
