"""TensorFlow's own TPU bridge, as a TPU's host applies it to a traced function: in MLIR, without a TPU.

The function must be traced by a `TpuEmulator` with `expand=False`, so that it holds what `tpu.replicate` left.
"""

from collections import Counter
import re
from typing import Any

import tensorflow as tf

_PIPELINE = "tf-replicated-clustering-bridge-v2"
_HOST = "/job:localhost/replica:0/task:0/device:"
_OUTSIDE = re.compile(
  r"_xla_outside_compilation|tf_device\.parallel_execute|HostCompute|XlaSendFromHost|XlaRecvAtHost"
)


def is_there() -> bool:
  """Whether this TensorFlow lets Python run the bridge: plain TensorFlow does since some time after 2.15."""
  try:
    tf.mlir.experimental.run_pass_pipeline("module {}", _PIPELINE, False)
  except (AttributeError, tf.errors.OpError):
    return False
  return True


def bridged(function: Any, *, cores: int) -> dict[str, Any]:
  """Runs the bridge and counts what it made.

  Args:
    function: a concrete function with one TPU program or several.
    cores: replicas it was traced for.

  Returns:
    `programs`: compiled programs, each started on all cores; `replicas`: of each. `variables`: resources that
    programs use; `reads`, `writes`: most of any one of them in one step. `inside`: variable operations left in a
    program, where the compiler would meet them; `outside`: traces of operations that a program leaves to
    the host; `must_compile`: functions marked to be compiled within a program.
  """
  traced = tf.mlir.experimental.convert_function(function, pass_pipeline="", show_debug_info=False)
  names = ["CPU:0", "TPU_SYSTEM:0", *(f"TPU:{index}" for index in range(cores))]
  devices = ", ".join(f'"{_HOST}{name}"' for name in names)
  traced = traced.replace("module attributes {", f"module attributes {{tf.devices = {{{devices}}}, ", 1)
  text = tf.mlir.experimental.run_pass_pipeline(traced, _PIPELINE, False)
  programs = set(re.findall(r'"tf_device\.cluster_func".*?func = @(\w+)', text))
  functions = re.split(r"\n(?=  func\.func )", text)
  within = [
    each for each in functions if (name := re.search(r"func\.func[^@]*@(\w+)", each)) and name[1] in programs
  ]
  hosts = [each for each in functions if each not in within]
  reads, writes = (
    Counter(re.findall(rf'"tf\.{operation}VariableOp"\((%\w+)', "\n".join(hosts)))
    for operation in ("Read", "Assign")
  )
  return {
    "programs": len(programs),
    "replicas": sorted(
      {int(n) for n in re.findall(r"tf_device\.replicate.*?n = (\d+) : i32", text, re.DOTALL)}
    ),
    "variables": len(reads | writes),
    "reads": max(reads.values(), default=0),
    "writes": max(writes.values(), default=0),
    "inside": sum(each.count("VariableOp") for each in within),
    "outside": len(_OUTSIDE.findall(text)),
    "must_compile": len(re.findall(r"_XlaMustCompile = true", text)),
  }
