"""How the demo and the studies run this project's other commands, one after the other, in a checkout."""

from collections.abc import Sequence
import os
import pathlib
import shlex
import signal
import subprocess
import sys

from albert_tf.errors import EXIT_STOPPED, StoppedError, UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_command(title: str, words: Sequence[str], *, capture: bool = False) -> str:
  """Runs a command, its output shown as it comes or, with `capture`, returned. SIGTERM is passed on to it.

  Raises:
    UserError: it has failed.
    StoppedError: SIGTERM has reached this process, or the command; the command has ended.
  """
  print(f"\n{title}\n  $ python " + " \\\n      ".join(map(shlex.quote, words)), flush=True)
  child = subprocess.Popen(
    [sys.executable, *words],
    cwd=ROOT,
    env={
      "TF_CPP_MIN_LOG_LEVEL": "3",
      **os.environ,
    },  # TensorFlow's lines about absent GPUs look like errors.
    stdout=subprocess.PIPE if capture else None,
    text=True,
  )
  stopped = False

  def stop(*_: object) -> None:
    nonlocal stopped
    stopped = True
    child.terminate()

  before = signal.signal(signal.SIGTERM, stop)
  try:
    output, _ = child.communicate()
  finally:
    child.wait()  # Control-C reaches the child as well.
    signal.signal(signal.SIGTERM, before)
  if stopped or child.returncode in (EXIT_STOPPED, -signal.SIGTERM):
    raise StoppedError("stopped by SIGTERM.")
  if child.returncode:
    raise UserError(
      f"Every command must succeed. Received: status {child.returncode} from {title}; see above."
    )
  return output or ""
