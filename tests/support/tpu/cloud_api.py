"""A stand-in on loopback for Google's servers that tell where a TPU is: its API, and the metadata of a machine.

TensorFlow's resolver and Google's clients are the real ones; `environment` directs them here.
"""

from collections.abc import Iterator, Mapping
import contextlib
import http.server
import json
import threading
from typing import Any, NamedTuple

PROJECT, ZONE = "my-project", "us-west4-a"
_NODE = f"v1/projects/{PROJECT}/locations/{ZONE}/nodes/"


class Answer(NamedTuple):
  """What the API says of a TPU: an HTTP status with a message, or 200 with the fields of a node."""

  status: int
  fields: Mapping[str, Any] = {}
  message: str = ""


# The description of the API that Google's client asks for, of one method.
_DISCOVERY = """
  {"name": "tpu", "version": "v1", "rootUrl": "%s", "servicePath": "",
   "schemas": {"Node": {"id": "Node", "type": "object"}},
   "resources": {"projects": {"resources": {"locations": {"resources": {"nodes": {"methods": {"get": {
     "id": "tpu.projects.locations.nodes.get", "path": "v1/{+name}", "httpMethod": "GET",
     "parameterOrder": ["name"], "response": {"$ref": "Node"},
     "parameters": {"name": {"type": "string", "required": true, "location": "path"}}}}}}}}}}}
"""


class _Handler(http.server.BaseHTTPRequestHandler):
  nodes: Mapping[str, Answer]

  def do_GET(self) -> None:
    path = self.path.partition("?")[0].removeprefix("/")
    if path == "discovery":
      self._send(200, json.loads(_DISCOVERY % f"http://{self.headers['Host']}/"))
    elif path.endswith("/token"):
      self._send(200, {"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"})
    elif path.startswith("v1/"):
      unknown = Answer(404, message=f"Resource '{path.removeprefix('v1/')}' was not found")
      answer = self.nodes.get(path.removeprefix(_NODE), unknown)
      if answer.status == 200:
        self._send(200, answer.fields)
      else:
        self._send(answer.status, {"error": {"code": answer.status, "message": answer.message}})
    else:  # The machine's metadata server, at other paths.
      self._send(200, {"email": "someone@example.com", "scopes": []})

  def _send(self, status: int, body: Mapping[str, Any]) -> None:
    data = json.dumps(body).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(data)))
    self.send_header("Metadata-Flavor", "Google")
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, *_: Any) -> None:
    """Requests are not printed."""


@contextlib.contextmanager
def serving(nodes: Mapping[str, Answer]) -> Iterator[dict[str, str]]:
  """Serves the TPUs of `PROJECT` and `ZONE`, name → answer; gives the environment that leads to them."""
  handler = type("_Nodes", (_Handler,), {"nodes": nodes})
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  address = f"127.0.0.1:{server.server_port}"
  try:
    yield {
      "TPU_API_DISCOVERY_URL": f"http://{address}/discovery",
      "GCE_METADATA_IP": address,
      "GCE_METADATA_ROOT": address,
      "no_proxy": "127.0.0.1",
    }
  finally:
    server.shutdown()
    server.server_close()
