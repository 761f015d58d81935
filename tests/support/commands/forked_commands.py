"""Commands as users run them, each in a fork of one process that has TensorFlow loaded but not started."""

from collections.abc import Mapping
import dataclasses
import gc
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
from typing import Any, Self

from support.commands.child_processes import end_with_parent, ending_with_this, words

ROOT = pathlib.Path(__file__).parents[3]


@dataclasses.dataclass
class Command:
  """A running or finished command; `status` is negative where a signal ended it, as in `subprocess`."""

  pid: int
  folder: pathlib.Path
  status: int | None = None

  @property
  def stdout(self) -> str:
    return (self.folder / "stdout").read_text()

  @property
  def stderr(self) -> str:
    return (self.folder / "stderr").read_text()


class ForkedCommands:
  """Starts commands in one environment.

      with ForkedCommands(bucket.environment()) as commands:
        done = commands.run("tpu_scripts/run_pretrain.py", output_dir="gs://…")

  Args:
    environment: of the process that loads TensorFlow, and so of all commands.
    preload: modules to import before the first fork.
    emulated_gpus: from 2 on, the commands find this many GPUs, which are parts of the CPU.
  """

  def __init__(
    self,
    environment: Mapping[str, str] = os.environ,
    preload: str = "tensorflow,tensorflow_text",
    *,
    emulated_gpus: int = 1,
  ):
    self._folder = tempfile.TemporaryDirectory()
    self._count = 0
    paths = [str(ROOT), str(ROOT / "tests"), environment.get("PYTHONPATH", "")]
    self._process = subprocess.Popen(
      ending_with_this([sys.executable, __file__, preload, str(emulated_gpus)]),
      env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,  # One group with its commands, which end with it.
    )

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: Any) -> None:
    os.killpg(self._process.pid, signal.SIGKILL)
    self._process.communicate()
    self._folder.cleanup()

  def _ask(self, *question: Any) -> Any:
    assert self._process.stdin is not None
    assert self._process.stdout is not None
    print(json.dumps(question), file=self._process.stdin, flush=True)
    return json.loads(self._process.stdout.readline())

  def start(self, script: str, *arguments: Any, **flags: Any) -> Command:
    """Starts a command; `True` as a flag's value is a flag without one."""
    folder = pathlib.Path(self._folder.name, str(self._count))
    folder.mkdir()
    # A test may read them before the command has begun.
    (folder / "stdout").touch()
    (folder / "stderr").touch()
    self._count += 1
    line = [*map(str, arguments), *words(flags)]
    return Command(self._ask("start", str(folder), str(ROOT / script), *line), folder)

  def ended(self, command: Command) -> bool:
    if command.status is None:
      command.status = self._ask("poll", command.pid)
    return command.status is not None

  def wait(self, command: Command) -> Command:
    if command.status is None:
      command.status = self._ask("wait", command.pid)
    return command

  def run(self, script: str, *arguments: Any, **flags: Any) -> Command:
    return self.wait(self.start(script, *arguments, **flags))


def _start(folder: str, script: str, *arguments: str) -> int:
  child = os.fork()
  if child:
    return child
  end_with_parent()
  for number, name in ((1, "stdout"), (2, "stderr")):
    os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
  status = 1
  try:
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
    status = 0
  except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if isinstance(end.code, str):
      print(end.code, file=sys.stderr)
  except BaseException:
    sys.excepthook(*sys.exc_info())
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _emulate_gpus(count: int) -> None:
  """Divides the CPU, and lists its parts as GPUs; TensorFlow's runtime starts later, in each command."""
  import tensorflow as tf

  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
  list_devices = tf.config.list_logical_devices
  tf.config.list_logical_devices = lambda kind=None: list_devices("CPU" if kind == "GPU" else kind)


def _serve() -> None:
  preload, emulated_gpus = sys.argv[1], int(sys.argv[2])
  for module in preload.split(","):
    __import__(module)
  if emulated_gpus > 1:
    _emulate_gpus(emulated_gpus)
  gc.freeze()  # What is imported is garbage in no command, and stays in the memory that all share.
  for line in sys.stdin:
    what, *rest = json.loads(line)
    if what == "start":
      answer: int | None = _start(*rest)
    else:
      ended, status = os.waitpid(rest[0], os.WNOHANG if what == "poll" else 0)
      answer = os.waitstatus_to_exitcode(status) if ended else None
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
  _serve()
