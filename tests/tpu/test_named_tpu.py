"""A TPU that --tpu gives by name: Google's API, a stand-in on loopback, tells where it is or why it is not there."""

import os
import pathlib
import socket
import subprocess
import sys
from unittest import mock

import pytest
from support.tpu.cloud_api import PROJECT, ZONE, Answer, serving

from albert_tf import compat
from albert_tf.cli import doctor
from albert_tf.runs import distribution
from albert_tf.runs.settings import DistributionConfig

oauth2 = pytest.importorskip(
  "oauth2client.client", reason="Google's client, of the stacks tpu and addons"
)

_NODES = {
  "preempted": Answer(200, {"state": "PREEMPTED"}),
  "creating": Answer(200, {"state": "CREATING"}),
  "stopped": Answer(200, {"state": "STOPPED"}),
  "forbidden": Answer(403, message="Permission 'tpu.nodes.get' denied"),
}
_REMEDIES = {
  "preempted": "create it again",
  "creating": "describe",
  "stopped": "create it again",
  "forbidden": "roles/tpu.viewer",
}


@pytest.fixture(scope="module")
def api():
  """The environment that leads to the API; its TPU `ready` is a port that listens."""
  with socket.create_server(("127.0.0.1", 0)) as host:
    endpoint = {"ipAddress": "127.0.0.1", "port": host.getsockname()[1]}
    ready = Answer(200, {"state": "READY", "networkEndpoints": [endpoint]})
    with serving({**_NODES, "ready": ready}) as environment:
      yield environment


@pytest.fixture
def asked(api, monkeypatch):
  """Asks for a TPU in this process, which has credentials: Google's client has read the environment long ago."""
  monkeypatch.setenv("TPU_API_DISCOVERY_URL", api["TPU_API_DISCOVERY_URL"])
  credentials = oauth2.AccessTokenCredentials("a-token", "tests")
  monkeypatch.setattr(oauth2.GoogleCredentials, "get_application_default", lambda: credentials)

  def ask(name, zone=ZONE):
    config = DistributionConfig(tpu=name, tpu_zone=zone, gcp_project=PROJECT)
    return distribution.find_tpu(config)

  return ask


@pytest.mark.parametrize("name", ["absent", "ready", *_NODES])
def test_each_answer_has_its_remedy(asked, name):
  with pytest.raises((RuntimeError, ValueError)) as caught:
    asked(name, zone="us-west4-b" if name == "ready" else ZONE)
  assert _REMEDIES.get(name, "tpu-vm list") in doctor.remedy(str(caught.value))


def test_without_credentials_the_remedy_is_a_login(asked, monkeypatch):
  missing = oauth2.ApplicationDefaultCredentialsError(oauth2.ADC_HELP_MSG)
  no_credentials = mock.Mock(side_effect=missing)
  monkeypatch.setattr(oauth2.GoogleCredentials, "get_application_default", no_credentials)
  with pytest.raises(oauth2.ApplicationDefaultCredentialsError):
    asked("ready")
  assert "gcloud auth application-default login" in doctor.remedy(str(missing))


def test_a_ready_tpu_is_where_its_hosts_listen(asked):
  _, [address] = asked("ready")
  assert address.startswith("127.0.0.1:")


def test_make_doctor_asks_for_it(api):
  """In the zone and the project that the guide's variables name."""
  where = ["TPU=preempted", f"ZONE={ZONE}", f"PROJECT={PROJECT}"]
  interpreter = [f"STACK={compat.STACK}", f"BIN={pathlib.Path(sys.executable).parent}"]
  done = subprocess.run(
    ["make", "--assume-old=install", "doctor", *interpreter, *where],
    cwd=pathlib.Path(__file__).parents[2],
    env={**os.environ, **api},
    capture_output=True,
    text=True,
  )
  assert "NO  TPU preempted: " in done.stdout, done.stdout + done.stderr
  assert "create it again" in done.stdout
  assert "1 to fix." in done.stdout or not compat.TPU_KERNELS
