"""Serves exported models on this machine, with a page to try them in a browser.

It answers `predict` requests of TensorFlow Serving's REST API. It is meant for tests, not for a public network.
Control-C or SIGTERM ends it, after the requests that have arrived are answered.

Example:
  python tpu_scripts/serve_locally.py --saved_model RUN/saved_model --port 8501
  python tpu_scripts/serve_locally.py --saved_model words=RUN/saved_model,pairs=MRPC/saved_model
"""

import contextlib
import signal

from albert_tf.cli import commands
from albert_tf.settings import Settings, setting


class ServeSettings(Settings):
  """The models and the port to serve."""

  saved_model: tuple[str, ...] = setting(
    help="Exported models as PATH or NAME=PATH, with commas; a PATH is a version or a folder of versions. "
    "The highest is loaded at the start; a newer one needs a restart."
  )
  port: int = setting(
    8501,
    "Port of the REST API and the page, on 127.0.0.1 alone; 0: any free port. One in use is refused.",
    minimum=0,
    maximum=65535,
  )


commands.define_flags(ServeSettings)


def main() -> None:
  settings = commands.from_flags(ServeSettings)
  commands.load_tensorflow()
  from albert_tf.serving.server import LocalServer

  server = LocalServer(settings.saved_model, port=settings.port)
  # SIGTERM, which ends a container, is as good an end as Control-C. Requests that arrived are answered.
  with contextlib.suppress(KeyboardInterrupt), server:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name, servable in server.servables.items():
      print(f"Model {name}: {servable.model.directory}")
      print(f"REST  {server.model_url(name)}")
    print(f"Try it in a browser: {server.url}/   (Ctrl-C stops)", flush=True)
    server.serve_forever()


if __name__ == "__main__":
  commands.run(main)
