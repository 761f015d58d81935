"""Writes one file; arguments: --path=PATH --size=BYTES."""

import sys

from albert_tf import files
from albert_tf.errors import EXIT_USER_ERROR, UserError

if __name__ == "__main__":
  path, size = (word.partition("=")[2] for word in sys.argv[1:3])
  try:
    with files.atomic_writer(path) as stream:
      stream.write(b"x" * int(size))
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)
