"""A server of SavedModels for this machine: the REST API of TensorFlow Serving, and a page.

It is for trying models, not for the open network: it refuses requests of other hosts and of other
sites' pages.
"""

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
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

from google.protobuf import json_format
import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.loaded_model import message_of, open_version

_HOST = "127.0.0.1"
# Limits of a request. Parsed, a body of 8 MiB takes five to nine times that.
MAX_BODY_BYTES = 8 << 20
# Attention scores of 64 rows of 512 tokens take 0.8 GB in ALBERT base, 4.3 GB in xxlarge.
MAX_BATCH_SIZE = 64
# Lists, objects, and what is in them: 64 rows of 512 tokens have 98,304 ids with masks and segments.
# Python takes up to a hundred bytes for each, which may be two bytes of the body.
MAX_VALUES = 1 << 18
# The longest text eight times. If its characters are unknown, one takes about two seconds.
MAX_CHARACTERS = 1 << 20
# Of an answer: as JSON these take 1.5 GB. Logits of 64 rows of 512 positions would be a billion.
MAX_ANSWER_VALUES = 1 << 24
# Limit for receiving a whole request, and for each step of sending its answer.
READ_SECONDS = 30
_PATH = re.compile(
  r"/v1/models/(?P<name>[^/:]+)(/versions/(?P<version>[0-9]{1,18}))?(?P<verb>:predict|/metadata)?"
)
_PAGE_POLICY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)
# A comma or an opening bracket, and all up to the next one; strings count as one piece. No part is
# tried twice, so the search takes a time that grows with the body alone.
_VALUE = re.compile(rb'[,\[{](?:[^",\[{]++|"(?:[^"\\]++|\\.)*+"?)*+', re.DOTALL)
# TensorFlow Serving's two forms of a request, rows and columns → the name of their answer.
_ANSWERS = {"instances": "predictions", "inputs": "outputs"}


class RequestError(Exception):
  """A request that cannot be answered: HTTP status, and message for the client."""


# ------------------------------------------------------------------ one model


class Servable:
  """One version of a model.

  Args:
    text: PATH or NAME=PATH of a version directory or a folder of versions. Default name: the
      folder's.
  """

  def __init__(self, text: str):
    name, _, path = text.rpartition("=")
    self.model = open_version(path)
    folder, base = os.path.split(self.model.directory)
    self.version = 1
    if base.isdigit():
      self.version = int(base)
      base = os.path.basename(folder)
    self.name = name or base

  def predict(self, request: Any) -> dict[str, Any]:
    """The answer to a `predict` request's JSON, with `instances` (rows) or `inputs` (columns)."""
    # What is asked.
    forms = [form for form in _ANSWERS if isinstance(request, dict) and form in request]
    if len(forms) != 1:
      raise RequestError(
        400, "The body must be a JSON object with one of `instances` and `inputs`."
      )
    [form] = forms
    name = str(request.get("signature_name", "serving_default"))
    signatures = self.model.signatures
    if name not in signatures:
      raise RequestError(400, f"No signature {name!r:.60}. The model has: {', '.join(signatures)}.")

    # From JSON to arrays.
    definition = signatures[name]
    infos = definition.inputs
    by_row = form == "instances"
    columns = _columns(request[form], infos, optional=definition.defaults, by_row=by_row)
    cells = {key: _cells(key, value, infos[key]) for key, value in columns.items()}
    _check_characters(cells.values())
    arrays = {key: _array(key, columns[key], cells[key], infos[key]) for key in columns}
    try:
      outputs = self.model.run(name, arrays)
    except tf.errors.OpError as error:
      lines = message_of(error).splitlines()
      raise RequestError(400, "\n".join(lines[:3])) from error

    # Back to JSON; as in TensorFlow Serving, a single output needs no name.
    size = sum(array.size for array in outputs.values())
    if size > MAX_ANSWER_VALUES:
      raise RequestError(
        400,
        f"An answer may hold {MAX_ANSWER_VALUES:,} values. Received: a request for {size:,}. "
        "Send smaller batches.",
      )
    lists = {key: array.tolist() for key, array in outputs.items()}
    answer: Any = lists
    if len(lists) == 1:
      [answer] = lists.values()
    elif by_row:
      rows = zip(*lists.values(), strict=True)
      answer = [dict(zip(lists, row, strict=True)) for row in rows]
    return {_ANSWERS[form]: answer}

  def status(self) -> dict[str, Any]:
    """The version that answers, as TensorFlow Serving describes it."""
    available = {
      "version": str(self.version),
      "state": "AVAILABLE",
      "status": {"error_code": "OK", "error_message": ""},
    }
    return {"model_version_status": [available]}

  def metadata(self) -> dict[str, Any]:
    """The signatures, as TensorFlow Serving describes them."""
    # Fields at their defaults too, under the names of the message. The name of the first argument
    # depends on the version of protobuf.
    signatures = {
      name: json_format.MessageToDict(definition, True, True)
      for name, definition in self.model.signatures.items()
    }
    return {
      "model_spec": {"name": self.name, "signature_name": "", "version": str(self.version)},
      "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _parse(body: bytes) -> Any:
  """The JSON of a request; `{"b64": TEXT}` is the string of bytes that TEXT stands for in base64."""
  if next(itertools.islice(_VALUE.finditer(body), MAX_VALUES, None), None):
    raise RequestError(
      400, f"A request may hold {MAX_VALUES:,} values. Received: more. Send smaller batches."
    )
  try:
    return json.loads(body.decode(), object_hook=_decode_binary)
  except (ValueError, RecursionError) as error:
    raise RequestError(400, f"The body must be JSON: {error}") from error


def _decode_binary(value: dict[str, Any]) -> dict[str, Any] | bytes:
  """An object of JSON, or the bytes that it stands for."""
  if list(value) != ["b64"] or not isinstance(value["b64"], str):
    return value
  text = value["b64"]
  try:
    # TensorFlow Serving takes texts without the "=" at the end.
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
  except ValueError as error:
    raise RequestError(400, f"b64 must be base64. Received: {text!r:.60} ({error}).") from error


def _check_rows(count: int) -> None:
  if count > MAX_BATCH_SIZE:
    raise RequestError(
      400, f"A request may hold {MAX_BATCH_SIZE} rows. Received: {count}. Send smaller batches."
    )


def _check_characters(columns: Iterable[np.ndarray]) -> None:
  """Looks at the strings of all inputs together; of binary strings it counts the bytes."""
  strings = [cell for column in columns for cell in column.flat if isinstance(cell, (str, bytes))]
  count = sum(map(len, strings))
  if count > MAX_CHARACTERS:
    raise RequestError(
      400,
      f"A request may hold {MAX_CHARACTERS:,} characters. Received: {count:,}. Send smaller batches.",
    )


def _columns(
  values: Any, infos: Mapping[str, Any], *, optional: Collection[str], by_row: bool
) -> dict[str, Any]:
  """Values by input name, from rows or columns; a single input needs no name.

  Inputs that are `optional` may be absent, in all rows alike.
  """
  rows = values if by_row else [values]
  if not isinstance(rows, list) or not rows:
    raise RequestError(400, "`instances` must be a list with at least one row.")
  if by_row:
    _check_rows(len(rows))  # Here already: each row becomes an object.
  if len(infos) == 1 and not isinstance(rows[0], dict):
    [name] = infos
    rows = [{name: row} for row in rows]
  names = set(rows[0]) if isinstance(rows[0], dict) else set()
  is_complete = set(infos).difference(optional) <= names <= set(infos)
  if not is_complete or not all(isinstance(row, dict) and set(row) == names for row in rows):
    raise RequestError(400, f"The inputs must be named {', '.join(sorted(infos))}, in every row.")
  if not by_row:
    return rows[0]
  return {name: [row[name] for row in rows] for name in rows[0]}


def _cells(name: str, value: Any, info: Any) -> np.ndarray:
  """One input's values as they are, in the shape of `info`, a TensorInfo."""
  # NumPy stops at lists of unequal lengths, and after many levels; what is deeper are lists in its
  # cells. TensorFlow would end the process for more than 254 levels.
  cells = np.array(value, object)
  shape = tf.TensorShape(info.tensor_shape)
  is_shaped = shape.is_compatible_with(cells.shape)
  if not is_shaped or any(isinstance(cell, (list, dict)) for cell in cells.flat):
    raise RequestError(
      400,
      f"{name} must have the shape {shape}, in lists of one length. "
      f"Received: values, or unequal lists, in the shape {cells.shape}.",
    )

  # The model reads each choice of [B, C] or [B, C, S] as a row.
  row_axes = 2 if name == "choices" or cells.ndim == 3 else 1
  _check_rows(math.prod(cells.shape[:row_axes]))
  return cells


def _array(name: str, value: Any, cells: np.ndarray, info: Any) -> np.ndarray:
  """One input's array, with the type of `info`, a TensorInfo."""
  dtype = tf.as_dtype(info.dtype)
  if dtype == tf.string:
    others = [cell for cell in cells.flat if not isinstance(cell, (str, bytes))]
    if others:
      raise RequestError(
        400,
        f'{name} takes strings. Received: {json.dumps(others[0]):.60}. For a missing text send "".',
      )
  # TensorFlow refuses other types, where NumPy would convert them. But it makes 0 of 2**32.
  try:
    array = tf.constant(value, dtype).numpy()
  except (TypeError, ValueError, OverflowError) as error:
    raise RequestError(400, f"{name}: {error}") from error
  if dtype.is_integer and np.any(array != cells):
    raise RequestError(400, f"{name} takes {dtype.name} values from {dtype.min} to {dtype.max}.")
  return array


# ------------------------------------------------------------------ HTTP


class LocalServer(http_server.ThreadingHTTPServer):
  """Serves models at `url`, which only this machine can reach.

  Args:
    models: PATH or NAME=PATH of each.
    port: 0 for any free one.
  """

  # Connections that wait to be accepted; more than these are reset. Linux has a limit of its own,
  # usually 4,096.
  request_queue_size = 1024
  # `server_close` waits for the answers on their way. A thread within TensorFlow while Python ends
  # would abort the process.
  daemon_threads = False

  def __init__(self, models: Sequence[str], *, port: int = 0):
    loaded = [Servable(text) for text in models]
    self.servables = {servable.name: servable for servable in loaded}
    if len(self.servables) < len(loaded):
      names = ", ".join(servable.name for servable in loaded)
      raise UserError(f"Each model needs its own name. Received: {names}. Write NAME=PATH.")
    self._connections: set[socket.socket] = set()
    try:
      super().__init__((_HOST, port), _Handler)
    except OSError as error:
      raise UserError(
        f"The port must be free. Received: {_HOST}:{port} ({error}). Choose another --port."
      ) from error
    self.url = f"http://{_HOST}:{self.server_address[1]}"

  def model_url(self, name: str) -> str:
    """The address of a model: a GET of it answers with its status."""
    return f"{self.url}/v1/models/{urllib_parse.quote(name, safe='')}"

  def process_request(self, request: Any, client_address: Any) -> None:
    self._connections.add(request)
    super().process_request(request, client_address)

  def shutdown_request(self, request: Any) -> None:
    self._connections.discard(request)
    super().shutdown_request(request)

  def server_close(self) -> None:
    """Takes no further request, and returns when those that arrived are answered."""
    for connection in list(self._connections):
      with contextlib.suppress(OSError):  # The client left.
        connection.shutdown(socket.SHUT_RD)
    super().server_close()

  def handle_error(self, request: Any, client_address: Any) -> None:
    """Ignores broken connections."""


class _Until(socket.SocketIO):
  """Reads a connection until `deadline` (`time.monotonic`), a limit for all reads together.

  A limit for each read would let a client stay that sends a byte now and then.
  """

  _sock: socket.socket
  deadline = 0.0

  def readinto(self, buffer: Any) -> int | None:
    self._sock.settimeout(max(1e-3, self.deadline - time.monotonic()))
    return super().readinto(buffer)


class _Handler(http_server.BaseHTTPRequestHandler):
  """One connection."""

  protocol_version = "HTTP/1.1"
  server_version = "albert_tf"
  server: LocalServer

  def setup(self) -> None:
    super().setup()
    self._input = _Until(self.connection, "rb")
    self.rfile = io.BufferedReader(self._input)

  def handle_one_request(self) -> None:
    self._input.deadline = time.monotonic() + READ_SECONDS
    super().handle_one_request()

  def do_POST(self) -> None:
    status = 200
    try:
      value = self._answer()
    except RequestError as error:
      status, message = error.args
      value = {"error": message}
    except OSError:
      self.close_connection = True  # The client left.
      return
    except Exception as error:  # No request may stop the server.
      status = 500
      value = {"error": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):  # The client left.
      self._send(status, value)
      if self.close_connection:
        self._await_end()

  do_GET = do_POST  # noqa: N815

  def _answer(self) -> Any:
    """The answer to the request: a JSON value, or the bytes of the page."""
    reason = foreign(self.headers.get("Host", ""), self.headers.get("Origin"))
    if reason:
      self.close_connection = True  # A body may follow.
      raise RequestError(403, reason)
    method = self.command
    path = urllib_parse.urlsplit(self.path).path
    body = self._read_body()
    if method == "GET" and path in ("/", "/index.html"):
      return importlib.resources.files("albert_tf.serving").joinpath("page.html").read_bytes()
    if method == "GET" and path == "/favicon.ico":
      return b""
    if method == "GET" and path == "/models.json":
      # For the page: the API itself lists no models.
      return {"models": sorted(self.server.servables)}

    match = _PATH.fullmatch(path)
    if match is None or (match["verb"] == ":predict") != (method == "POST"):
      raise RequestError(404, f"Nothing answers {method} {path}.")
    # TensorFlow Serving's words for what it does not serve.
    name = urllib_parse.unquote(match["name"])
    version = match["version"]
    model = f"Specific({name}, {version})" if version else f"Latest({name})"
    servable = self.server.servables.get(name)
    if servable is None or (version and int(version) != servable.version):
      raise RequestError(404, f"Servable not found for request: {model}")

    if match["verb"] == "/metadata":
      return servable.metadata()
    if method == "GET":
      return servable.status()
    return servable.predict(_parse(body))

  def _read_body(self) -> bytes:
    """The body; that of a GET is read too, else it would be taken for the next request."""
    lengths = set(self.headers.get_all("Content-Length", []))
    has_chunks = "Transfer-Encoding" in self.headers
    if self.command == "GET" and not lengths and not has_chunks:
      return b""
    length = ""
    if len(lengths) == 1 and not has_chunks:
      [length] = lengths
    if not re.fullmatch("[0-9]+", length):
      self.close_connection = True  # A body of unknown length cannot be skipped.
      raise RequestError(
        400, f"A body needs one Content-Length. Received: {', '.join(lengths) or 'none'!r:.60}."
      )
    # Python converts no number of thousands of digits.
    if len(length) > len(str(MAX_BODY_BYTES)) or int(length) > MAX_BODY_BYTES:
      self.close_connection = True
      raise RequestError(
        413,
        f"A body may have {MAX_BODY_BYTES:,} bytes. Received: {length:.60}. Send smaller batches.",
      )
    return self.rfile.read(int(length))

  def _await_end(self) -> None:
    """Skips what the client still sends, until it closes the connection or its time is over.

    A connection that is closed before resets the client's, which then does not see the answer.
    """
    self.connection.shutdown(socket.SHUT_WR)
    while self.rfile.read1():
      pass

  def _send(self, status: int, value: Any) -> None:
    """Sends the page's bytes, or a value as JSON."""
    if isinstance(value, bytes):
      data = value
      content_type = "text/html; charset=utf-8"
    else:
      # TensorFlow's strings are bytes, which may be cut within a character.
      text = json.dumps(
        value, ensure_ascii=False, default=lambda string: string.decode("utf-8", "replace")
      )
      data = text.encode("utf-8", "replace") + b"\n"
      content_type = "application/json"
    headers = {
      "Content-Type": content_type,
      "Content-Length": str(len(data)),
      "Content-Security-Policy": _PAGE_POLICY,
      "X-Content-Type-Options": "nosniff",
      "Cache-Control": "no-cache",
    }
    if self.close_connection:
      headers["Connection"] = "close"
    self.connection.settimeout(READ_SECONDS)
    self.send_response(status)
    for name, header in headers.items():
      self.send_header(name, header)
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, format: str, *args: Any) -> None:
    """Logs nothing."""


def foreign(host: str, origin: str | None) -> str:
  """The reason to refuse a request with these headers; empty if it comes from this machine.

  A page of another site may send requests to this server, even by its own host name (DNS
  rebinding).
  """
  try:
    name = urllib_parse.urlsplit(f"//{host}").hostname or ""
    is_known = name in ("", "localhost") or bool(ipaddress.ip_address(name))
  except ValueError:
    is_known = False
  if not is_known:
    return f"The Host must be localhost or an address. Received: {host}."
  if origin is not None and origin.partition("://")[2] != host:
    return f"Pages of other origins may not ask this server. Received: {origin}."
  return ""
