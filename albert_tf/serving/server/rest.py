"""The REST side: TensorFlow Serving's paths, and the page for trying a model."""

from collections.abc import Mapping
import contextlib
from http import server as http_server
import importlib.resources
import ipaddress
import json
import re
import socket
import threading
import time
from typing import Any
from urllib import parse as urllib_parse

from albert_tf.compat import message_fields
from albert_tf.serving.server import json_tensors
from albert_tf.serving.server.servable import HTTP_STATUS, ApiError, Servable, find_servable

MAX_BODY_BYTES = 32 << 20
MAX_CONNECTIONS = 64  # Each has a thread.
_READ_SECONDS = 30  # For a whole body: a client that stops sending, or trickles, is left.
_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d{1,18}))?"
_PREDICTION = re.compile(_MODEL + r":(?P<method>classify|regress|predict)", re.IGNORECASE)
_STATUS = re.compile(_MODEL + r"(?P<metadata>/metadata)?", re.IGNORECASE)
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


def answer_get(servables: Mapping[str, Servable], path: str) -> Any:
  """The JSON for a GET below /v1/."""
  match = _STATUS.fullmatch(path)
  if match is None:
    raise ApiError(f"Malformed request: GET {path}")
  servable = _find(servables, match, for_status=not match["metadata"])
  if match["metadata"]:
    signatures = {name: message_fields(definition) for name, definition in servable.signatures.items()}
    return {
      "model_spec": {"name": servable.name, "signature_name": "", "version": str(servable.version)},
      "metadata": {"signature_def": {"signature_def": signatures}},
    }
  available = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
  return {"model_version_status": [{"version": str(servable.version), **available}]}


def answer_post(servables: Mapping[str, Servable], path: str, body: bytes) -> Any:
  """The JSON for a POST below /v1/."""
  match = _PREDICTION.fullmatch(path)
  if match is None:
    raise ApiError(f"Malformed request: POST {path}")
  servable = _find(servables, match)  # An unknown model comes before a malformed body.
  request = json_tensors.parse_json(body)
  signature_name = request.get("signature_name", "")
  if not isinstance(signature_name, str):
    raise ApiError("'signature_name' key must be a string value.")
  method = match["method"].lower()
  if method == "predict":
    inputs, rows = json_tensors.read_inputs(request, servable.signature(signature_name).inputs)
    return json_tensors.write_outputs(servable.run(signature_name, inputs), rows=rows)
  examples = json_tensors.examples_from_json(request)
  return {"results": getattr(servable, method)(signature_name, examples)}


def _find(servables: Mapping[str, Servable], match: re.Match[str], *, for_status: bool = False) -> Servable:
  version = None if match["version"] is None else int(match["version"])
  return find_servable(servables, urllib_parse.unquote(match["name"]), version, for_status=for_status)


def foreign(host: str, origin: str | None, own_name: str) -> str | None:
  """Why a request is not from a program or page of this machine; None where it may be.

  A page of another site may send requests here but neither from our origin nor, where its own name was made to
  point here (DNS rebinding), under a name that is ours.

  Args:
    host, origin: the request's headers.
    own_name: the address that the server was asked to listen on.
  """
  try:
    name = urllib_parse.urlsplit(f"//{host}").hostname or ""
    known = name in ("", "localhost", own_name) or bool(ipaddress.ip_address(name))
  except ValueError:
    known = False
  if not known:
    return f"The Host must be localhost or an address. Received: {host}."
  if origin is not None and origin.partition("://")[2] != host:
    return f"Pages of other origins may not ask here. Received: {origin}."
  return None


class RestHandler(http_server.BaseHTTPRequestHandler):
  """One connection; `server.servables` answer."""

  protocol_version = "HTTP/1.1"
  server_version = "albert_tf"
  timeout = _READ_SECONDS
  server: "RestServer"

  def _refused(self) -> bool:
    """Whether the request came from elsewhere and was answered so."""
    reason = foreign(self.headers.get("Host", ""), self.headers.get("Origin"), self.server.host)
    if reason is not None:
      self.close_connection = True  # A body may follow.
      self._send_json(403, {"error": reason})
    return reason is not None

  def do_GET(self) -> None:
    if self._refused():
      return
    path = urllib_parse.urlsplit(self.path).path
    if path in ("/", "/index.html"):
      self._send(200, _page(), "text/html; charset=utf-8")
    elif path == "/models.json":  # For the page: the API itself lists no models.
      self._send_json(200, {"models": sorted(self.server.servables)})
    elif path == "/favicon.ico":
      self._send(204, b"", "image/x-icon")
    else:
      self._answer(lambda: answer_get(self.server.servables, path))

  def do_POST(self) -> None:
    if self._refused():
      return
    path = urllib_parse.urlsplit(self.path).path
    body = self._read_body()
    if body is not None:
      self._answer(lambda: answer_post(self.server.servables, path, body))

  def _read_body(self) -> bytes | None:
    """The body, or None after an error was sent."""
    length = self.headers.get("Content-Length", "")
    if "Transfer-Encoding" in self.headers or not length.isascii() or not length.isdigit():
      self.close_connection = True
      self._send_json(411, {"error": "A Content-Length header is needed."})
      return None
    if int(length) > MAX_BODY_BYTES:
      self._refuse_large(int(length))
      return None
    body = self._read_within(int(length), time.monotonic() + _READ_SECONDS)
    if len(body) < int(length):  # The client left: there is nobody to answer.
      self.close_connection = True
      return None
    return body

  def _read_within(self, length: int, deadline: float) -> bytes:
    """Up to `length` bytes, as far as they come before the deadline."""
    body = bytearray()
    with contextlib.suppress(OSError):
      while len(body) < length and (left := deadline - time.monotonic()) > 0:
        self.connection.settimeout(left)
        chunk = self.rfile.read1(min(length - len(body), 1 << 20))
        if not chunk:
          break
        body += chunk
      self.connection.settimeout(self.timeout)
    return bytes(body)

  def _refuse_large(self, length: int) -> None:
    # Read and thrown away, up to a bound: a client that still writes would not see the answer.
    self.close_connection = True
    left = min(length, 8 * MAX_BODY_BYTES)
    try:
      while left > 0 and (chunk := self.rfile.read(min(left, 1 << 20))):
        left -= len(chunk)
    except (OSError, TimeoutError):
      return
    message = f"A body must not be larger than {MAX_BODY_BYTES} bytes. Received: {length}."
    self._send_json(413, {"error": message})

  def _answer(self, answer: Any) -> None:
    try:
      status, value = 200, answer()
    except ApiError as error:
      status, value = HTTP_STATUS[error.code], {"error": error.message}
    except MemoryError:
      status, value = 429, {"error": "Out of memory. Send smaller batches."}
    except Exception as error:  # A server outlives whatever a request brings.
      status, value = 500, {"error": f"{type(error).__name__}: {error}"}
    self._send_json(status, value)

  def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
    """The base class's own refusals (bad request line, unknown method), as the API's JSON."""
    del explain
    self.close_connection = True
    self._send_json(code, {"error": message or "Malformed request"})

  def _send_json(self, status: int, value: Mapping[str, Any]) -> None:
    indent = 1 if self.command == "GET" else None  # Metadata is for reading; tensors are large.
    data = json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    self._send(status, data + b"\n", "application/json")

  def _send(self, status: int, data: bytes, content_type: str) -> None:
    try:
      self.send_response(status)
      self.send_header("Content-Type", content_type)
      self.send_header("Content-Length", str(len(data)))
      self.send_header("X-Content-Type-Options", "nosniff")
      if content_type.startswith("text/html"):
        self.send_header("Content-Security-Policy", _PAGE_POLICY)
        self.send_header("Cache-Control", "no-cache")
      if self.close_connection:
        self.send_header("Connection", "close")
      self.end_headers()
      if self.command != "HEAD":
        self.wfile.write(data)
    except OSError:  # The client left.
      self.close_connection = True

  def log_message(self, format: str, *args: Any) -> None:
    """Nothing: a person who tries a model need not read each request."""


def _page() -> bytes:
  return importlib.resources.files("albert_tf.serving.server").joinpath("web/index.html").read_bytes()


class RestServer(http_server.ThreadingHTTPServer):
  """An HTTP server of models."""

  daemon_threads = True
  request_queue_size = 64

  def __init__(self, servables: Mapping[str, Servable], *, host: str, port: int):
    self.servables = servables
    self.host = host
    self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
    self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    super().__init__((host, port), RestHandler)

  def process_request(self, request: Any, client_address: Any) -> None:
    if self._free.acquire(blocking=False):
      super().process_request(request, client_address)
    else:
      with contextlib.suppress(OSError):  # It left.
        request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
      self.shutdown_request(request)

  def process_request_thread(self, request: Any, client_address: Any) -> None:
    try:
      super().process_request_thread(request, client_address)
    finally:
      self._free.release()

  def handle_error(self, request: Any, client_address: Any) -> None:
    """A connection that broke concerns nobody else."""
