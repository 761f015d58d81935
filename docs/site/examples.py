"""Our docstrings say `Example:`; the Google style that mkdocstrings renders as code says `Examples:`."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
  """Renames the section before it is parsed."""

  def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
    if obj.docstring is not None:
      obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
