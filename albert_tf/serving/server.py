"""A server of SavedModels for this machine: TensorFlow Serving's REST `predict`, and a page to try a model.

It is for trying models, not for the open network: it refuses requests of other hosts and of other sites' pages.
"""

from collections.abc import Mapping, Sequence
import contextlib
from http import server as http_server
import importlib.resources
import io
import ipaddress
import itertools
import json
import math
import os
import re
import socket
import time
from typing import Any
from urllib import parse as urllib_parse

import numpy as np
import tensorflow as tf

from albert_tf.compat import message_fields
from albert_tf.errors import UserError
from albert_tf.serving.check import LoadedModel, find_version

MAX_BODY_BYTES = 32 << 20
# Rows of a request. Attention scores of 64 rows of 512 tokens take 0.8 GB in ALBERT base, 4.3 GB in xxlarge.
MAX_BATCH_SIZE = 64
READ_SECONDS = 30  # Limit for receiving a request, and for sending its answer.
_PATH = re.compile(
  r"/v1/models/(?P<name>[^/:]+)(/versions/(?P<version>[0-9]{1,18}))?(?P<verb>:predict|/metadata)"
)
_PAGE_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


class RequestError(Exception):
  """A request that cannot be answered: message for the client, and HTTP status."""

  def __init__(self, message: str, *, status: int = 400):
    super().__init__(message)
    self.status = status


class Servable(LoadedModel):
  """One version of a model.

  Args:
    text: PATH or NAME=PATH of a version directory or a folder of versions. Default name: the folder's.
  """

  def __init__(self, text: str):
    name, _, path = text.rpartition("=")
    super().__init__(find_version(path))
    folder, base = os.path.split(self.directory)
    self.name = name or (os.path.basename(folder) if base.isdigit() else base)
    self.version = int(base) if base.isdigit() else 1

  def predict(self, request: Any) -> dict[str, Any]:
    """The answer to the JSON of a `predict` request, with `instances` (rows) or `inputs` (columns)."""
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
      raise RequestError("The body must be a JSON object with one of `instances` and `inputs`.")
    name = request.get("signature_name", "serving_default")
    if not isinstance(name, str) or name not in self.signatures:
      raise RequestError(f"No signature {name!r}. The model has: {', '.join(self.signatures)}.")
    definition, by_row = self.signatures[name], "instances" in request
    values = request["instances" if by_row else "inputs"]
    columns = _columns(values, definition.inputs, by_row=by_row)
    arrays = {key: _array(key, value, definition.inputs[key]) for key, value in columns.items()}
    try:
      outputs = self.run(name, arrays)
    except tf.errors.OpError as error:
      words = [line for line in error.message.splitlines() if line.strip() and "[[" not in line]
      raise RequestError("\n".join(words[:3]) or error.message) from error
    lists = {key: _jsonable(array) for key, array in outputs.items()}
    if len(lists) == 1:
      return {"predictions" if by_row else "outputs": next(iter(lists.values()))}
    if not by_row:
      return {"outputs": lists}
    return {
      "predictions": [
        dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)
      ]
    }

  def metadata(self) -> dict[str, Any]:
    """The signatures, as TensorFlow Serving describes them."""
    signatures = {name: message_fields(definition) for name, definition in self.signatures.items()}
    return {
      "model_spec": {"name": self.name, "signature_name": "", "version": str(self.version)},
      "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _columns(values: Any, inputs: Mapping[str, Any], *, by_row: bool) -> dict[str, Any]:
  """Values by input name, from rows or columns; a single input needs no name."""
  rows = values if by_row else [values]
  if not isinstance(rows, list) or not rows:
    raise RequestError("`instances` must be a list with at least one row.")
  if len(inputs) == 1 and not isinstance(rows[0], dict):
    rows = [{next(iter(inputs)): row} for row in rows]
  if not all(isinstance(row, dict) and set(row) == set(inputs) for row in rows):
    raise RequestError(f"The inputs must be named {', '.join(sorted(inputs))}, in every row.")
  return {name: [row[name] for row in rows] if by_row else rows[0][name] for name in rows[0]}


def _array(name: str, value: Any, info: Any) -> np.ndarray:
  """One input's array, with the type and shape of `info`, a TensorInfo."""
  dtype = tf.as_dtype(info.dtype)
  sizes = _sizes(name, value, info.tensor_shape)
  row_axes = 1
  # The model reads each choice of [B, C] or [B, C, S] as a row.
  if name == "choices" or len(sizes) == 3:
    row_axes = 2
  rows = math.prod(sizes[:row_axes])
  if rows > MAX_BATCH_SIZE:
    raise RequestError(
      f"A request may hold {MAX_BATCH_SIZE} rows. Received: {rows}. Send smaller batches."
    )
  try:
    array = tf.constant(value, tf.int64 if dtype.is_integer else dtype).numpy()
  except (TypeError, ValueError, OverflowError) as error:
    raise RequestError(f"{name}: {error}") from error
  if dtype.is_integer and np.any(array.astype(dtype.as_numpy_dtype) != array):
    raise RequestError(f"{name} takes {dtype.name} values from {dtype.min} to {dtype.max}.")
  return array


def _sizes(name: str, value: Any, tensor_shape: Any) -> list[int]:
  """The sizes of nested lists, which must have a TensorInfo's shape.

  No tensor is made before: TensorFlow ends the process for lists of more than 254 levels.
  """
  sizes: list[int] = []
  entries = [value]  # All entries of one level, in order.
  for _ in tensor_shape.dim:
    lengths = {len(entry) for entry in entries if isinstance(entry, list)}
    if len(lengths) != 1 or not all(isinstance(entry, list) for entry in entries):
      break
    sizes.append(lengths.pop())
    entries = list(itertools.chain.from_iterable(entries))
  shape = tf.TensorShape(tensor_shape)
  rest = "values"
  if any(isinstance(entry, (list, dict)) for entry in entries):
    rest = "deeper or unequal lists"
  if rest != "values" or not shape.is_compatible_with(sizes):
    raise RequestError(
      f"{name} must have the shape {shape}, in lists of one length. Received: {sizes}, then {rest}."
    )
  return sizes


def _jsonable(array: np.ndarray) -> Any:
  """Nested lists, strings as text."""
  if array.dtype == object:
    texts = [value.decode("utf-8", "replace") for value in array.reshape(-1)]
    array = np.array(texts, object).reshape(array.shape)
  return array.tolist()


def foreign(host: str, origin: str | None, own_name: str) -> str:
  """The reason to refuse a request with these headers; empty if it comes from this machine.

  A page of another site may send requests to this server, even by its own host name (DNS rebinding).
  """
  try:
    name = urllib_parse.urlsplit(f"//{host}").hostname or ""
    known = name in ("", "localhost", own_name) or bool(ipaddress.ip_address(name))
  except ValueError:
    known = False
  if not known:
    return f"The Host must be localhost or an address. Received: {host}."
  if origin is not None and origin.partition("://")[2] != host:
    return f"Pages of other origins may not ask this server. Received: {origin}."
  return ""


class _Until(socket.SocketIO):
  """Reads a connection until `deadline` (`time.monotonic`), a limit for all reads together."""

  _sock: socket.socket
  deadline = 0.0

  def readinto(self, buffer: Any) -> int | None:
    self._sock.settimeout(max(1e-3, self.deadline - time.monotonic()))
    return super().readinto(buffer)


class _Handler(http_server.BaseHTTPRequestHandler):
  """One connection."""

  protocol_version = "HTTP/1.1"
  server_version = "albert_tf"
  server: "LocalServer"

  def setup(self) -> None:
    super().setup()
    self._input = _Until(self.connection, "rb")
    self.rfile = io.BufferedReader(self._input)

  def handle_one_request(self) -> None:
    self._input.deadline = time.monotonic() + READ_SECONDS
    super().handle_one_request()

  def do_POST(self) -> None:
    method = self.command
    try:
      reason = foreign(self.headers.get("Host", ""), self.headers.get("Origin"), self.server.host)
      if reason:
        self.close_connection = True  # A body may follow.
        raise RequestError(reason, status=403)
      body = self._read_body() if method == "POST" else b""
      self._send(200, self._value(method, urllib_parse.urlsplit(self.path).path, body))
    except RequestError as error:
      self._send(error.status, {"error": str(error)})
    except OSError:
      self.close_connection = True  # The client left.
    except Exception as error:  # No request may stop the server.
      self._send(500, {"error": f"{type(error).__name__}: {error}"})

  do_GET = do_POST  # noqa: N815

  def _value(self, method: str, path: str, body: bytes) -> Any:
    """The answer: a JSON value, or the bytes of the page."""
    if method == "GET" and path in ("/", "/index.html"):
      return importlib.resources.files("albert_tf.serving").joinpath("page.html").read_bytes()
    if method == "GET" and path == "/favicon.ico":
      return b""
    if method == "GET" and path == "/models.json":  # For the page: the API itself lists no models.
      return {"models": sorted(self.server.servables)}
    match = _PATH.fullmatch(path)
    if match is None or (match["verb"] == ":predict") != (method == "POST"):
      raise RequestError(f"Nothing answers {method} {path}.", status=404)
    # TensorFlow Serving's words for what it does not serve.
    name = urllib_parse.unquote(match["name"])
    version = match["version"]
    request = f"Latest({name})"
    if version:
      request = f"Specific({name}, {version})"
    servable = self.server.servables.get(name)
    if servable is None or (version and int(version) != servable.version):
      raise RequestError(f"Servable not found for request: {request}", status=404)
    if method == "GET":
      return servable.metadata()
    try:
      request = json.loads(body)
    except (ValueError, RecursionError) as error:
      raise RequestError(f"The body must be JSON: {error}") from error
    return servable.predict(request)

  def _read_body(self) -> bytes:
    length = self.headers.get("Content-Length", "")
    if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
      self.close_connection = True
      raise RequestError(
        f"A body needs a Content-Length of at most {MAX_BODY_BYTES:,} bytes.", status=413
      )
    return self.rfile.read(int(length))

  def _send(self, status: int, value: Any) -> None:
    """Sends the page's bytes, or a value as JSON."""
    is_page = isinstance(value, bytes)
    data = (
      value if is_page else json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    )
    with contextlib.suppress(OSError):  # The client left.
      self.connection.settimeout(READ_SECONDS)
      self.send_response(status)
      headers = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
      if is_page:
        headers |= {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-cache"}
        headers |= {"Content-Type": "text/html; charset=utf-8"}
      for name, value in headers.items():
        self.send_header(name, value)
      self.send_header("Content-Length", str(len(data)))
      if self.close_connection:
        self.send_header("Connection", "close")
      self.end_headers()
      self.wfile.write(data)

  def log_message(self, format: str, *args: Any) -> None:
    """Logs nothing."""


class LocalServer(http_server.ThreadingHTTPServer):
  """Serves models, each PATH or NAME=PATH, at `url`; the default host is reachable only from this machine."""

  daemon_threads = True
  request_queue_size = 64

  def __init__(self, models: Sequence[str], *, host: str = "127.0.0.1", port: int = 0):
    loaded = [Servable(text) for text in models]
    self.servables = {servable.name: servable for servable in loaded}
    if len(self.servables) < len(loaded):
      raise UserError(
        f"Each model needs its own name. Received: {', '.join(s.name for s in loaded)}. Write NAME=PATH."
      )
    self.host = host
    self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
      super().__init__((host, port), _Handler)
    except OSError as error:
      raise UserError(
        f"The port must be free. Received: {host}:{port} ({error}). Choose another --port."
      ) from error
    self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}"

  def handle_error(self, request: Any, client_address: Any) -> None:
    """Ignores broken connections."""
