"""README's picture: what the last `make demo` learned, from its run directory. `make pictures` calls it."""

import json
import pathlib

from albert_tf.pretraining.curves import draw_curves

ROOT = pathlib.Path(__file__).parents[2]


def main() -> None:
  demo = ROOT / ".demo"
  lines = (demo / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
  draw_curves(
    [json.loads(line) for line in lines],
    str(ROOT / "docs/images/learning_curve.png"),
    panels=("masked-LM loss (nats)", "masked-LM accuracy", "sentence accuracy"),
  )


if __name__ == "__main__":
  main()
