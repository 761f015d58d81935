"""`make fuzz MINUTES=60`: all fuzzers in rounds with fresh seeds; exit status 1 where one has found something."""

import collections
import os
import pathlib
import random
import re
import subprocess
import sys
import time

_FOLDER = pathlib.Path(__file__).parent


def main(minutes: float) -> int:
  end = time.monotonic() + 60 * minutes
  failed: list[str] = []
  cases: collections.Counter[str] = collections.Counter()
  while time.monotonic() < end:
    seed = str(random.SystemRandom().randrange(1 << 32))
    print(f"round with FUZZ_SEED={seed}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=1800", str(_FOLDER)]
    done = subprocess.run(
      command, env={**os.environ, "FUZZ_SEED": seed}, stdout=subprocess.PIPE, text=True, check=False
    )
    for found in re.finditer(r"(\w+\.\w+) (\d+)", done.stdout.partition("\ncases: ")[2].partition("\n")[0]):
      cases[found[1]] += int(found[2])
    if done.returncode:
      failed.append(seed)
      print(done.stdout, flush=True)
      print(f"repeat: FUZZ_SEED={seed} {' '.join(command)}", flush=True)
  print("\n".join(f"{count:8,} cases of {name}" for name, count in sorted(cases.items())))
  print(
    f"{sum(cases.values()):,} cases, {len(failed)} rounds failed"
    + "".join(f", seed {each}" for each in failed)
  )
  return int(bool(failed))


if __name__ == "__main__":
  sys.exit(main(float(sys.argv[1])))
