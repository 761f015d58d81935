"""What `import albert_tf` names, and what Keras finds by it."""

import pathlib
import re

import albert_tf

ROOT = pathlib.Path(__file__).parent.parent


def test_every_registered_class_is_loadable():
  pattern = re.compile(r'register_keras_serializable\((?:package=)?"albert_tf"\)\n(?:class|def) (\w+)')
  found = {
    name: ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "albert_tf").rglob("*.py")
    for name in pattern.findall(path.read_text(encoding="utf-8"))
  }
  assert dict(albert_tf.lazy.REGISTERED) == found
  assert set(albert_tf.__all__) <= set(dir(albert_tf))
  assert all(getattr(albert_tf, name).__name__ == name for name in albert_tf.__all__)
