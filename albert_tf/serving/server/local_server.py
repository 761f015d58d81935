"""Both sides together, on this machine."""

from collections.abc import Iterator, Mapping
import contextlib
import importlib.util
import threading
from typing import Any

from albert_tf.errors import UserError
from albert_tf.serving.server.rest import RestServer
from albert_tf.serving.server.servable import Servable


class LocalServer:
  """Serves models until stopped; a context manager.

  Args:
    servables: by model name.
    host: the address to listen on; only this machine can reach the default.
    rest_port: 0 for any free one.
    grpc_port: 0 for any free one; None for no gRPC.

  Attributes:
    url: of the REST side and the page, without a slash at the end.
    grpc_address: host:port, or None.

  Raises:
    UserError: a port is taken, or the gRPC packages are missing.

  Example:
    >>> with LocalServer(load_servables([ServableFolder.parse("run/saved_model")])) as server:
    ...   print(server.url)
  """

  def __init__(
    self,
    servables: Mapping[str, Servable],
    *,
    host: str = "127.0.0.1",
    rest_port: int = 0,
    grpc_port: int | None = 0,
  ):
    shown = f"[{host}]" if ":" in host else host
    with _port_is_free(host, rest_port, "--port"):
      self._rest = RestServer(servables, host=host, port=rest_port)
    self.url = f"http://{shown}:{self._rest.server_address[1]}"
    self._grpc: Any = None
    self.grpc_address: str | None = None
    if grpc_port is not None:
      try:
        self._grpc, bound = _make_grpc(servables, host, grpc_port)
      except BaseException:
        self._rest.server_close()
        raise
      self.grpc_address = f"{shown}:{bound}"
    self._thread = threading.Thread(target=self._rest.serve_forever, daemon=True)

  def __enter__(self) -> "LocalServer":
    self._thread.start()
    if self._grpc is not None:
      self._grpc.start()
    return self

  def __exit__(self, *error: object) -> None:
    """Stops listening; requests under way are let finish for a moment."""
    if self._grpc is not None:
      self._grpc.stop(grace=1).wait()
    self._rest.shutdown()
    self._rest.server_close()


def _make_grpc(servables: Mapping[str, Servable], host: str, port: int) -> tuple[Any, int]:
  if importlib.util.find_spec("tensorflow_serving") is None:
    raise UserError(
      "gRPC needs tensorflow-serving-api. Received: an environment without it. "
      'Install with pip install "albert-tf[serving]", or serve REST alone with --grpc_port=-1.'
    )
  from albert_tf.serving.server.rpc import make_grpc_server

  with _port_is_free(host, port, "--grpc_port"):
    return make_grpc_server(servables, host=host, port=port)


@contextlib.contextmanager
def _port_is_free(host: str, port: int, flag: str) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise UserError(
      f"The port must be free. Received: {host}:{port} ({error}). Choose another with {flag}, or 0 for any."
    ) from error
