"""`make fuzz MINUTES=60`: runs all fuzzers in rounds with new seeds; exit status 1 if a case was found."""

import collections
import os
import pathlib
import random
import re
import subprocess
import sys
import time


def main(minutes: float) -> int:
  end, failed = time.monotonic() + 60 * minutes, []
  cases: collections.Counter[str] = collections.Counter()
  folder = str(pathlib.Path(__file__).parent)
  command = [sys.executable, "-m", "pytest", "-q", "--timeout=1800", folder]
  while time.monotonic() < end:
    seed = str(random.SystemRandom().randrange(1 << 32))
    print(f"round with FUZZ_SEED={seed}", flush=True)
    environment = {**os.environ, "FUZZ_SEED": seed}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    for line in re.findall(r"^cases: (.*)", done.stdout, re.MULTILINE):
      for name, count in re.findall(r"(\S+) (\d+)", line):
        cases[name] += int(count)
    if done.returncode:
      failed.append(seed)
      print(f"{done.stdout}\nrepeat: FUZZ_SEED={seed} {' '.join(command)}", flush=True)
  print("\n".join(f"{count:9,} {name}" for name, count in sorted(cases.items())))
  print(f"{sum(cases.values()):9,} cases; failed: {', '.join(failed) or 'none'}")
  return int(bool(failed))


if __name__ == "__main__":
  sys.exit(main(float(sys.argv[1])))
