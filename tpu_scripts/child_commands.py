"""How the demo and the studies run this project's other commands, one after the other."""

from collections.abc import Sequence
import os
import pathlib
import shlex
import signal
import subprocess
import sys

from albert_tf.errors import EXIT_STOPPED, StoppedError, UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_command(title: str, command: Sequence[str], *, capture: bool = False) -> str:
  """Runs a command in the checkout. SIGTERM is passed on to it.

  Args:
    title: printed above the command.
    command: a script's path in the checkout, and its flags.
    capture: whether the output is returned; else it is shown as it comes.

  Raises:
    UserError: it has failed.
    StoppedError: SIGTERM has reached this process, or the command; the command has ended.
  """
  quoted = " \\\n      ".join(map(shlex.quote, command))
  print(f"\n{title}\n  $ python {quoted}", flush=True)
  # TensorFlow's lines about absent GPUs look like errors.
  environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ
  stdout = None
  if capture:
    stdout = subprocess.PIPE
  child = subprocess.Popen(
    [sys.executable] + list(command), cwd=ROOT, env=environment, stdout=stdout, text=True
  )
  stopped = False

  def stop(*_: object) -> None:
    nonlocal stopped
    stopped = True
    child.terminate()

  previous_handler = signal.signal(signal.SIGTERM, stop)
  try:
    output, _ = child.communicate()
  finally:
    child.wait()  # Control-C reaches the child as well.
    signal.signal(signal.SIGTERM, previous_handler)
  # A command that was stopped by somebody else ends this one too.
  if stopped or child.returncode in (EXIT_STOPPED, -signal.SIGTERM):
    raise StoppedError("stopped by SIGTERM.")
  if child.returncode:
    raise UserError(
      f"Every command must succeed. Received: status {child.returncode} from {title}; see above."
    )
  return output or ""
