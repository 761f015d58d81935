"""Apache Beam as on a cluster, on the loopback address: a job service, and a pool that starts worker processes."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any, NamedTuple

import psutil
from support.commands.child_processes import ending_with_this, free_addresses
from support.commands.forked_commands import ROOT

_START_SECONDS = 60


class BeamServices(NamedTuple):
  """Two services; `options` are what the command is given after its lone --."""

  job_service: subprocess.Popen[bytes]
  pool: subprocess.Popen[bytes]
  options: list[str]

  def workers(self) -> list[psutil.Process]:
    """The processes that run the pipeline's steps now."""
    return psutil.Process(self.pool.pid).children()


@contextlib.contextmanager
def beam_services(log: pathlib.Path, *, workers: int) -> Iterator[BeamServices]:
  """Starts both, and ends them and all workers.

  Args:
    log: file for all that they print.
    workers: processes that a job asks for.
  """
  addresses = free_addresses(2)
  job_address, pool_address = addresses
  with log.open("wb") as stream:
    job_service = _start(
      "portability.local_job_service_main", f"--port={_port(job_address)}", stream
    )
    pool = _start("worker.worker_pool_main", f"--service_port={_port(pool_address)}", stream)
    options = [
      "--runner=PortableRunner",
      f"--job_endpoint={job_address}",
      "--environment_type=EXTERNAL",
      f"--environment_config={pool_address}",
      f"--sdk_worker_parallelism={workers}",
    ]
    services = BeamServices(job_service, pool, options)
    try:
      for address, process in zip(addresses, (job_service, pool), strict=True):
        _wait_for(address, process)
      yield services
    finally:
      left = services.workers() if pool.poll() is None else []
      left += [job_service, pool]
      for process in left:
        process.kill()
      for process in left:
        process.wait()


def _start(module: str, argument: str, output: Any) -> subprocess.Popen[bytes]:
  programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
  modules = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
  return subprocess.Popen(
    ending_with_this([sys.executable, "-m", f"apache_beam.runners.{module}", argument]),
    env={**os.environ, "PATH": programs, "PYTHONPATH": modules},  # The pool starts `python`.
    stdout=output,
    stderr=output,
  )


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
  deadline = time.monotonic() + _START_SECONDS
  host, port = address.split(":")
  while True:
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
      return
    assert process.poll() is None, f"the service for {address} has ended"
    assert time.monotonic() < deadline, f"nothing listens at {address}"
    time.sleep(0.1)


def _port(address: str) -> str:
  return address.rpartition(":")[2]
