"""Writes one file; arguments: --path=PATH --size=BYTES, and --plain to do it as TensorFlow does."""

from collections.abc import Sequence
import sys

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import EXIT_USER_ERROR, UserError


def main(argv: Sequence[str]) -> None:
  path, size = (word.partition("=")[2] for word in argv[1:3])
  writer = tf.io.gfile.GFile(path, "wb") if "--plain" in argv else files.atomic_writer(path)
  with writer as stream:
    stream.write(b"x" * int(size))


if __name__ == "__main__":
  try:
    main(sys.argv)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)
