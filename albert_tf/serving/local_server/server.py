"""Both sides together, on this machine."""

from collections.abc import Mapping
import importlib.util
import threading
from types import TracebackType
from typing import Any

from albert_tf.errors import UserError
from albert_tf.serving.local_server.api import Api
from albert_tf.serving.local_server.rest import RestServer
from albert_tf.serving.local_server.servable import Servable

LOOPBACK = "127.0.0.1"


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
    host: str = LOOPBACK,
    rest_port: int = 0,
    grpc_port: int | None = 0,
  ):
    self.api = Api(servables)
    shown = f"[{host}]" if ":" in host else host
    try:
      self._rest = RestServer(self.api, host=host, port=rest_port)
    except OSError as error:
      raise UserError(
        f"The port must be free. Received: {host}:{rest_port} ({error}). Choose another, or 0 for any."
      ) from error
    self.url = f"http://{shown}:{self._rest.server_address[1]}"
    self._grpc: Any = None
    self.grpc_address: str | None = None
    if grpc_port is not None:
      try:
        self._grpc, bound = self._make_grpc(host, grpc_port)
      except BaseException:
        self._rest.server_close()
        raise
      self.grpc_address = f"{shown}:{bound}"
    self._thread = threading.Thread(target=self._rest.serve_forever, daemon=True)

  def _make_grpc(self, host: str, port: int) -> tuple[Any, int]:
    if importlib.util.find_spec("tensorflow_serving") is None:
      raise UserError(
        "gRPC needs tensorflow-serving-api. Received: an environment without it. "
        'Install with pip install "albert-tf[serving]", or serve REST alone with --grpc_port=-1.'
      )
    from albert_tf.serving.local_server.rpc import make_grpc_server

    try:
      return make_grpc_server(self.api, host=host, port=port)
    except OSError as error:
      raise UserError(
        f"The port must be free. Received: {host}:{port} ({error}). Choose another, or 0 for any."
      ) from error

  def start(self) -> "LocalServer":
    """Answers from now on, in threads of its own."""
    self._thread.start()
    if self._grpc is not None:
      self._grpc.start()
    return self

  def stop(self) -> None:
    """Stops listening; requests under way are let finish for a moment."""
    if self._grpc is not None:
      self._grpc.stop(grace=1).wait()
    if self._thread.is_alive():
      self._rest.shutdown()
    self._rest.server_close()

  def __enter__(self) -> "LocalServer":
    return self.start()

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.stop()
