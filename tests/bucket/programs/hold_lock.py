"""Takes a directory's lock and keeps it for a while; arguments: --path=DIRECTORY --seconds=SECONDS."""

import sys
import time

from albert_tf.errors import EXIT_USER_ERROR, UserError
from albert_tf.lock import DirectoryLock

if __name__ == "__main__":
  path, seconds = (word.partition("=")[2] for word in sys.argv[1:3])
  try:
    with DirectoryLock(path).held():
      time.sleep(float(seconds))
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)
