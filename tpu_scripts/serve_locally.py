"""Serves exported models on this machine, with a page for trying them in a browser.

It follows TensorFlow Serving's REST and gRPC API, so that a client written against
it works with TensorFlow Serving; it is not TensorFlow Serving.

Example:
  python tpu_scripts/serve_locally.py --saved_model RUN/saved_model --port 8501
  python tpu_scripts/serve_locally.py --saved_model words=RUN/saved_model --saved_model pairs=MRPC/saved_model
"""

from collections.abc import Sequence
import signal
import threading
from typing import Any

from absl import app, flags, logging

from albert_tf.errors import exit_on_user_error
from albert_tf.startup import load_tensorflow

_SAVED_MODEL = flags.DEFINE_multi_string(
  "saved_model",
  None,
  "A version directory or a folder of versions (the highest is taken), as PATH or NAME=PATH; may be repeated.",
  required=True,
)
_PORT = flags.DEFINE_integer("port", 8501, "REST API and page; 0 for any free port.", 0, 65535)
_GRPC_PORT = flags.DEFINE_integer("grpc_port", 8500, "gRPC API; 0 for any free port, -1 for none.", -1, 65535)
_HOST = flags.DEFINE_string(
  "host", "127.0.0.1", "Address to listen on. The default is reached from this machine only."
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
  logging.set_verbosity(logging.WARNING)
  load_tensorflow()
  from albert_tf.serving.server import LocalServer, ServableFolder, load_servables

  folders = [ServableFolder.parse(text) for text in _SAVED_MODEL.value]
  servables = load_servables(folders)
  grpc_port = None if _GRPC_PORT.value < 0 else _GRPC_PORT.value
  server = LocalServer(servables, host=_HOST.value, rest_port=_PORT.value, grpc_port=grpc_port)
  stopped = threading.Event()

  def stop(number: int, frame: Any) -> None:
    stopped.set()

  signal.signal(signal.SIGTERM, stop)
  signal.signal(signal.SIGINT, stop)
  with server:
    for folder in folders:
      print(f"Model {folder.name}: {folder.directory}")
    print(f"REST  {server.url}/v1/models/{folders[0].name}")
    if server.grpc_address:
      print(f"gRPC  {server.grpc_address}")
    print(f"Try it in a browser: {server.url}/   (Ctrl-C stops)", flush=True)
    stopped.wait()


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
