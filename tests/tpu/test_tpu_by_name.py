"""`--tpu=NAME`: TensorFlow's client asks Google's TPU API, here a fake of it on the loopback address."""

import http.server
import json
import threading

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.training import distribution
from albert_tf.training.settings import DistributionConfig

client = pytest.importorskip(
  "oauth2client.client", reason="installed where TPUs are: on the stacks tpu and addons"
)
pytest.importorskip("googleapiclient")

NODES = {
  "projects/p/locations/z/nodes/ready": {
    "state": "READY",
    "health": "HEALTHY",
    "networkEndpoints": [{"ipAddress": "127.0.0.1", "port": 8470}],
  },
  "projects/p/locations/z/nodes/creating": {"state": "CREATING"},
}
FORBIDDEN = "projects/p/locations/z/nodes/forbidden"


def discovery_document(port):
  parameters = {"name": {"type": "string", "location": "path", "required": True, "pattern": "^projects/.*$"}}
  get = {
    "id": "tpu.projects.locations.nodes.get",
    "path": "v1/{+name}",
    "httpMethod": "GET",
    "parameters": parameters,
    "parameterOrder": ["name"],
    "response": {"$ref": "Node"},
  }
  nodes = {"nodes": {"methods": {"get": get}}}
  root = f"http://127.0.0.1:{port}/"
  return {
    "name": "tpu",
    "version": "v1",
    "rootUrl": root,
    "baseUrl": root,
    "servicePath": "",
    "schemas": {"Node": {"id": "Node", "type": "object", "properties": {}}},
    "resources": {"projects": {"resources": {"locations": {"resources": nodes}}}},
  }


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    name = self.path.partition("?")[0].removeprefix("/v1/")
    if self.path.startswith("/discovery"):
      status, answer = 200, discovery_document(self.server.server_port)
    elif name in NODES:
      status, answer = 200, NODES[name]
    else:
      status = 403 if name == FORBIDDEN else 404
      answer = {
        "error": {"code": status, "message": "permission denied" if status == 403 else f"{name} not found"}
      }
    body = json.dumps(answer).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *arguments):
    pass


@pytest.fixture(autouse=True)
def tpu_api(monkeypatch):
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  monkeypatch.setenv("TPU_API_DISCOVERY_URL", f"http://127.0.0.1:{server.server_port}/discovery")
  credentials = client.AccessTokenCredentials("token-of-a-test", "test")
  monkeypatch.setattr(client.GoogleCredentials, "get_application_default", lambda: credentials)
  yield
  server.shutdown()
  server.server_close()


def config(name, zone="z"):
  return DistributionConfig(tpu=name, tpu_zone=zone, gcp_project="p")


def test_a_name_becomes_the_address_of_its_host():
  resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="ready", zone="z", project="p")
  assert resolver.master() == "grpc://127.0.0.1:8470"


@pytest.mark.parametrize(
  ("name", "zone", "words"),
  [
    ("ready", "elsewhere", "projects/p/locations/elsewhere/nodes/ready not found"),
    ("forbidden", "z", "permission denied"),
    ("creating", "z", 'not yet ready; state: "CREATING"'),
  ],
)
def test_a_tpu_that_cannot_be_had_is_a_users_error(monkeypatch, name, zone, words):
  monkeypatch.setattr(distribution, "probe_tpu", lambda config: None)  # Plain TensorFlow is refused before.
  with pytest.raises(UserError, match="check name, zone and project") as caught:
    distribution.make_strategy(config(name, zone))
  assert words in str(caught.value)
