"""A proxy between TensorFlow's `gs://` and a fake server: it counts, delays, refuses and cuts.

TensorFlow's client speaks TLS to *.googleapis.com and to nobody else; what it does honour is HTTPS_PROXY. So the
proxy answers CONNECT, shows a certificate of its own authority, and passes each request on in clear text.
"""

import collections
from collections.abc import Iterator
import contextlib
import dataclasses
import http.client
import http.server
import random
import re
import socket
import ssl
import threading
from typing import Any
import urllib.parse

_BLOCK = 1 << 18
_JSON_OBJECT = re.compile(r"^(?:/upload)?/storage/v1/b/([^/?]+)/o(?:/([^/?]+)(/rewriteTo/.*)?)?$")
# Of one connection only: the proxy makes its own.
_HOP_BY_HOP = {"connection", "expect", "keep-alive", "proxy-connection", "transfer-encoding"}


@dataclasses.dataclass(frozen=True)
class Exchange:
  """One request as it was answered."""

  kind: str  # read | stat | list | upload_start | upload | upload_status | copy | delete | bucket
  object: str  # bucket/name; the prefix for a list
  requested: int  # Bytes of a read's range.
  received: int  # Bytes of the answer's body that were passed on.
  fault: str  # "" or what happened to it: 503 | cut_before | cut_upload | cut_after | cut_answer | refused


@dataclasses.dataclass(frozen=True)
class Faults:
  """What goes wrong, and how often.

  Args:
    rate: share of requests that fail.
    seed: of the choice which, and how.
    how: names of what may happen to them.
    on: regular expression over "kind bucket/name" of the requests that may fail.
    at_most: how many may.
    refuse: (regular expression over "kind bucket/name", status): answered with that status always.
  """

  rate: float = 0.0
  seed: int = 0
  how: tuple[str, ...] = ("503", "503", "cut_before", "cut_upload", "cut_after", "cut_answer")
  on: str = ""
  at_most: int = 1_000_000_000
  refuse: tuple[tuple[str, int], ...] = ()


def _classify(method: str, path: str, headers: Any) -> tuple[str, str]:
  """Kind and bucket/name."""
  parts = urllib.parse.urlsplit(path)
  query = urllib.parse.parse_qs(parts.query)
  match = _JSON_OBJECT.match(parts.path)
  if not match:
    if parts.path.startswith("/storage/v1/b"):
      return "bucket", parts.path.removeprefix("/storage/v1/b/")
    return "read", urllib.parse.unquote(parts.path.lstrip("/"))
  bucket, name, rewrite = match.groups()
  if parts.path.startswith("/upload"):
    asks = (headers.get("Content-Range") or "").startswith("bytes */")
    kind = "upload_start" if method == "POST" else "upload_status" if asks else "upload"
  elif rewrite:
    kind = "copy"
  elif method == "DELETE":
    kind = "delete"
  else:
    kind = "stat" if name else "list"
  name = urllib.parse.unquote(name or query.get("name", query.get("prefix", [""]))[0])
  return kind, f"{bucket}/{name}"


class _Handler(http.server.BaseHTTPRequestHandler):
  """One connection of a client: CONNECT, TLS, then requests until it closes."""

  protocol_version = "HTTP/1.1"
  server: "GcsProxy"
  upstream: http.client.HTTPConnection

  def log_message(self, format: str, *args: Any) -> None:
    """Requests are not printed."""

  def handle(self) -> None:
    self.upstream = http.client.HTTPConnection("127.0.0.1", self.server.target_port, timeout=60)
    # Clients are killed and close without ceremony: that is what the proxy is for.
    with contextlib.suppress(OSError, http.client.HTTPException):
      super().handle()

  def finish(self) -> None:
    with contextlib.suppress(OSError):
      super().finish()
    self.connection.close()
    self.upstream.close()

  def do_CONNECT(self) -> None:
    if not self.path.partition(":")[0].endswith(".googleapis.com"):
      self.send_error(403)
      return
    self.connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
    self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")

  def _answer(self) -> None:
    kind, name = _classify(self.command, self.path, self.headers)
    status, fault = self.server.draw(kind, name)
    asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
    requested = int(asked[2]) - int(asked[1]) + 1 if asked else 0
    received = 0
    try:
      received = self._refuse(status) if status else self._pass_on(fault)
    finally:
      self.server.exchanges.append(Exchange(kind, name, requested, received, fault))

  do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815

  def handle_expect_100(self) -> bool:
    return True  # `_body` says "100 Continue": a request that is refused need not send its body.

  def _body(self) -> Iterator[bytes]:
    if (self.headers.get("Expect") or "").lower() == "100-continue":
      self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
      self.wfile.flush()
    if (self.headers.get("Transfer-Encoding") or "").lower() == "chunked":
      # libcurl frames an upload so although it also gives its length, which the server then goes by.
      while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
        yield from self._blocks(size)
        self.rfile.readline()
      self.rfile.readline()
    else:
      yield from self._blocks(int(self.headers.get("Content-Length") or 0))

  def _blocks(self, left: int) -> Iterator[bytes]:
    while left:
      block = self.rfile.read(min(left, _BLOCK))
      if not block:
        raise ConnectionError("The client closed in the middle of an upload.")
      left -= len(block)
      yield block

  def _cut(self) -> int:
    self.close_connection = True
    with contextlib.suppress(OSError):
      self.connection.shutdown(socket.SHUT_RDWR)
    return 0

  def _refuse(self, status: int) -> int:
    for _ in self._body():
      pass
    body = f'{{"error": {{"code": {status}, "message": "as the test asked"}}}}'.encode()
    return self._send(status, [("Content-Type", "application/json")], body)

  def _send(
    self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False
  ) -> int:
    self.send_response_only(status)
    for header, value in headers:
      self.send_header(header, value)
    if "content-length" not in {header.lower() for header, _ in headers}:
      self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    sent = body[: len(body) // 2] if cut else body
    self.wfile.write(sent)
    self.wfile.flush()
    return len(sent)

  def _pass_on(self, fault: str) -> int:
    """Sends the request to the server and the answer back; bytes of the answer."""
    if fault == "cut_before":
      return self._cut()
    self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
    for header, value in self.headers.items():
      if header.lower() not in _HOP_BY_HOP:
        self.upstream.putheader(header, value)
    self.upstream.endheaders()
    for block in self._body():
      if fault == "cut_upload":
        self.upstream.send(block[: len(block) // 2])
        self.upstream.close()
        return self._cut()
      self.upstream.send(block)
    answer = self.upstream.getresponse()
    body = answer.read()
    # Without a body of the request there is nothing to cut before the answer.
    if fault in ("cut_upload", "cut_after"):
      return self._cut()
    headers = [
      # The client would otherwise continue an upload in clear text, past this proxy.
      (header, value.replace("http://", "https://", 1) if header.lower() == "location" else value)
      for header, value in answer.getheaders()
      if header.lower() not in _HOP_BY_HOP
    ]
    sent = self._send(answer.status, headers, body, cut=fault == "cut_answer")
    if fault == "cut_answer":
      self._cut()
    return sent


class GcsProxy(http.server.ThreadingHTTPServer):
  """The proxy, in threads of this process; `exchanges` is its log and `faults` may be set at any time.

  Args:
    tls: the context with which it shows itself as *.googleapis.com.
    target_port: of the fake server on this machine.
  """

  daemon_threads = True
  request_queue_size = 128

  def __init__(self, *, tls: ssl.SSLContext, target_port: int):
    super().__init__(("127.0.0.1", 0), _Handler)
    self.tls, self.target_port = tls, target_port
    self.exchanges: list[Exchange] = []
    self.faults = Faults()
    self._lock = threading.Lock()
    threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

  def handle_error(self, request: Any, client_address: Any) -> None:
    """A client that was killed."""

  @property
  def faults(self) -> Faults:
    return self._faults

  @faults.setter
  def faults(self, faults: Faults) -> None:
    self._faults, self._random, self._left = faults, random.Random(faults.seed), faults.at_most

  def draw(self, kind: str, name: str) -> tuple[int, str]:
    """(status to refuse with or 0, name of the fault or "") for the next request."""
    for pattern, status in self._faults.refuse:
      if re.search(pattern, f"{kind} {name}"):
        return status, "refused"
    with self._lock:
      may = self._left and re.search(self._faults.on, f"{kind} {name}")
      if not may or self._random.random() >= self._faults.rate:
        return 0, ""
      self._left -= 1
      fault = self._random.choice(self._faults.how)
    return (503, "503") if fault == "503" else (0, fault)

  def counts(self) -> dict[str, int]:
    """Requests by kind, and faults by name as `fault:NAME`."""
    kinds = [exchange.kind for exchange in self.exchanges]
    faults = [f"fault:{exchange.fault}" for exchange in self.exchanges if exchange.fault]
    return dict(collections.Counter(kinds + faults))
