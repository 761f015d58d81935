"""Apache Beam's own options: which runner, and whether its workers reach the files of this machine."""

from collections.abc import Sequence
import json
import re

from apache_beam.options.pipeline_options import (
  FlinkRunnerOptions,
  PipelineOptions,
  PortableOptions,
  SparkRunnerOptions,
  StandardOptions,
)

from albert_tf import files
from albert_tf.errors import UserError

_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.fn_runner.FnApiRunner"
# Runners that have workers where --environment_type says; those not named here are taken to be on this machine.
_PORTABLE = ("portable", "flink", "spark", "prism")
_ALWAYS_REMOTE = ("dataflow",)
_THIS_MACHINE = re.compile(r"(\w+://)?(localhost|127(\.\d+){3}|\[?::1\]?|embed)(:\d+)?/?$")
_LOCAL_MASTER = re.compile(r"\[(local|auto)\]$|local(\[.*\])?$")


def pipeline_options(arguments: Sequence[str]) -> PipelineOptions:
  """Beam's options; new ones for each pipeline, because some runners change them."""
  arguments = list(arguments)
  if not any(argument.split("=")[0] == "--runner" for argument in arguments):
    # Beam's own default would first look for a faster runner to download.
    arguments.append(f"--runner={_LOCAL_RUNNER}")
  return PipelineOptions(arguments, save_main_session=False)


def check_reach(arguments: Sequence[str], paths: Sequence[str]) -> None:
  """Refuses files of this machine for workers that are elsewhere.

  Args:
    arguments: Beam's options.
    paths: what the command reads and writes, patterns as they are.

  Raises:
    UserError: a path that the workers cannot reach.
  """
  local = [path for path in paths if not files.is_remote(path)]
  options = pipeline_options(arguments)
  where = _elsewhere(options)
  if local and where:
    raise UserError(
      "Beam's workers must reach the input, --output_dir and --work_dir. Received: "
      f"--runner={options.view_as(StandardOptions).runner}, whose workers are {where}, and {local[0]}, on the disk of "
      "this machine. Name a bucket (gs://…); or file:///… for a folder that is mounted at the same place on all "
      "machines."
    )


def _elsewhere(options: PipelineOptions) -> str:
  """Where the workers are that do not share this machine's disks; empty where they do."""
  name = options.view_as(StandardOptions).runner.rsplit(".", 1)[-1].lower().removesuffix("runner")
  if name in _ALWAYS_REMOTE:
    return "on other machines"
  if name not in _PORTABLE:
    return ""
  portable = options.view_as(PortableOptions)
  kind = (portable.environment_type or _default_environment(name, options)).upper()
  kind = kind.removeprefix("BEAM:ENV:").removesuffix(":V1")
  if kind == "DOCKER":
    return "in containers"
  if kind == "EXTERNAL":
    return _unless_here(_external_address(portable))
  if kind == "PROCESS":
    return _unless_here(portable.job_endpoint or _master(name, options))
  return ""  # LOOPBACK: this process.


def _default_environment(name: str, options: PipelineOptions) -> str:
  """What Beam takes where no --environment_type is given."""
  if name == "prism" or _LOCAL_MASTER.match(_master(name, options)):
    return "LOOPBACK"
  return "DOCKER"


def _master(name: str, options: PipelineOptions) -> str:
  if name == "flink":
    return options.view_as(FlinkRunnerOptions).flink_master
  return options.view_as(SparkRunnerOptions).spark_master_url if name == "spark" else ""


def _external_address(portable: PortableOptions) -> str:
  config = portable.environment_config or ""
  if config.lstrip().startswith("{"):
    return json.loads(config).get("url") or ""
  return config or portable.lookup_environment_option("external_service_address") or ""


def _unless_here(address: str) -> str:
  return (
    "" if _THIS_MACHINE.match(address) or _LOCAL_MASTER.match(address) else f"at {address or 'no address'}"
  )
