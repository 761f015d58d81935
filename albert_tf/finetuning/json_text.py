"""JSON that people wrote: what cannot be read, or holds half characters, is refused with its place."""

import json
from typing import Any

from albert_tf.errors import UserError


def parse_json(text: str, *, where: str) -> Any:
  r"""The value of a JSON text.

  Args:
    text: the JSON.
    where: file and line, for messages.

  Raises:
    UserError: it is not JSON, or has half of an escaped character (`\ud83d` without its other half), which no
      tokenizer and no file takes.
  """
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"JSON is expected here. Received: {where}, not JSON ({error}). Mend the line."
    ) from error
  refuse_half_characters(value, text, where=where)
  return value


def refuse_half_characters(value: Any, text: str, *, where: str) -> None:
  """Raises a `UserError` where the JSON `text` of `value` escapes half a character."""
  if "\\ud" in text.lower():  # Surrogates come in no other way: the file is UTF-8.
    try:
      json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
      raise UserError(
        f"Text is whole Unicode characters. Received: half of one (\\u{ord(error.object[error.start]):04x}) in "
        f"{where}. It was cut in two where the file was made; write the text out again."
      ) from error
