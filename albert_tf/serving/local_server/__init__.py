"""A small server of SavedModels on this machine, for trying and for checks.

It follows TensorFlow Serving's API, gRPC and REST, closely enough that a client
written for one works with the other; it is not TensorFlow Serving, and not meant
for the open network. Needs `grpcio` and `tensorflow-serving-api` for gRPC.
"""

from albert_tf.serving.local_server.servable import ServableFolder, load_servables
from albert_tf.serving.local_server.server import LocalServer

__all__ = ["LocalServer", "ServableFolder", "load_servables"]
