"""What a check found, a line each, and the report of all."""

from collections.abc import Callable, Sequence
import dataclasses
import json
import time

from albert_tf import files
from albert_tf.serving.conformance.probes import CannotProbe, NotApplicable, ProbeError

PASS, FAIL, SKIP, NONE = "PASS", "FAIL", "SKIP", "n/a "


@dataclasses.dataclass(frozen=True)
class Result:
  """One check.

  Args:
    name: what was checked.
    status: PASS, FAIL, SKIP (not possible here) or NONE (the export has no such thing).
    detail: what was found, or why it was not checked.
    seconds: how long it took.
  """

  name: str
  status: str
  detail: str
  seconds: float = 0.0

  def line(self) -> str:
    return f"{self.status}  {self.name:<32}  {self.detail}  [{self.seconds:.1f} s]"


class CheckFailed(Exception):  # noqa: N818  Read as a sentence.
  """The export does not hold what the check is for; the message says where."""


class Recorder:
  """Runs checks one after the other and keeps what they found.

  Args:
    say: called with each line.
  """

  def __init__(self, say: Callable[[str], None]):
    self._say = say
    self.results: list[Result] = []

  def check(self, name: str, body: Callable[[], str]) -> bool:
    """Runs `body`, which returns what it found or raises; True unless it failed."""
    started = time.perf_counter()
    try:
      status, detail = PASS, body()
    except CannotProbe as reason:
      status, detail = SKIP, str(reason)
    except NotApplicable as reason:
      status, detail = NONE, str(reason)
    except (CheckFailed, ProbeError) as failure:
      status, detail = FAIL, str(failure)
    except Exception as error:  # A check that breaks is a check that failed: the others go on.
      status, detail = FAIL, f"{type(error).__name__}: {error}"
    detail = " ".join(detail.split())
    self.results.append(Result(name, status, detail, time.perf_counter() - started))
    self._say(self.results[-1].line())
    return status != FAIL


def passed(results: Sequence[Result]) -> bool:
  """Whether nothing failed."""
  return all(result.status != FAIL for result in results)


def write_report(path: str, *, saved_model: str, results: Sequence[Result], versions: dict[str, str]) -> None:
  """Writes everything as JSON."""
  report = {
    "saved_model": saved_model,
    "passed": passed(results),
    "versions": versions,
    "checks": [dataclasses.asdict(result) for result in results],
  }
  with files.atomic_writer(path, "w") as stream:
    json.dump(report, stream, indent=2)
    stream.write("\n")
