"""A small server of SavedModels on this machine, for trying and for checks.

It follows TensorFlow Serving's API, gRPC and REST, closely enough that a client
written for one works with the other; it is not TensorFlow Serving, and not meant
for the open network. Needs `grpcio` and `tensorflow-serving-api` for gRPC.
"""

from albert_tf.serving.server.local_server import LocalServer
from albert_tf.serving.server.servable import ServableFolder, load_servables

__all__ = ["LocalServer", "ServableFolder", "load_servables"]
