"""Asks a served model over REST; needs only the package `requests`.

Works with TensorFlow Serving and with tpu_scripts/serve_locally.py. Copy it as a start for your own.

Example:
  python rest_client.py --model albert --input text="The sky is [MASK]."
  python rest_client.py --model pairs --input text="It rains." --input text_pair="It is wet."
  python rest_client.py --model pairs --method classify --signature examples --input text=… --input text_pair=…
  python rest_client.py --model albert --method metadata
"""

import argparse
import base64
import json
import sys

import requests


def parse_inputs(pairs: list[str]) -> list[dict[str, object]]:
  """NAME=VALUE, in order → one object a row; a name that comes again begins the next row.

  A VALUE that starts with "[" or "{" is JSON, unless it is none, as "[MASK] is …".
  """
  columns: dict[str, list[object]] = {}
  for pair in pairs:
    name, equals, value = pair.partition("=")
    if not equals:
      raise SystemExit(f"error: --input must be NAME=VALUE. Received: {pair!r}.")
    columns.setdefault(name, []).append(parse_value(value))
  if len({len(values) for values in columns.values()}) > 1:
    counts = {name: len(values) for name, values in columns.items()}
    raise SystemExit(f"error: every input needs as many values as there are rows. Received: {counts}.")
  return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def parse_value(value: str) -> object:
  """A list or number from JSON, else the string itself; bytes that are no text go as base64."""
  if value[:1] in ("[", "{"):
    try:
      return json.loads(value)
    except ValueError:
      pass
  try:
    value.encode()
  except UnicodeEncodeError:
    return {"b64": base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()}
  return value


def ask(arguments: argparse.Namespace) -> object:
  """The server's JSON; ends the program with the server's own words where it refuses."""
  url = f"{arguments.url.rstrip('/')}/v1/models/{arguments.model}"
  if arguments.method in ("metadata", "status"):
    suffix = "/metadata" if arguments.method == "metadata" else ""
    response = requests.get(url + suffix, timeout=arguments.timeout)
  else:
    rows = parse_inputs(arguments.input)
    body = {"instances" if arguments.method == "predict" else "examples": rows}
    if arguments.signature:
      body["signature_name"] = arguments.signature
    response = requests.post(f"{url}:{arguments.method}", json=body, timeout=arguments.timeout)
  try:
    value = response.json()
  except ValueError:
    raise SystemExit(f"error: HTTP {response.status_code}, and not JSON: {response.text[:200]}") from None
  if response.status_code != 200:
    raise SystemExit(f"error: HTTP {response.status_code}: {value.get('error', value)}")
  return value


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--url", default="http://127.0.0.1:8501", help="of the server")
  parser.add_argument("--model", default="albert", help="its name on the server")
  methods = ["predict", "classify", "regress", "metadata", "status"]
  parser.add_argument("--method", default="predict", choices=methods)
  parser.add_argument("--signature", default="", help="default: serving_default")
  parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
  parser.add_argument("--timeout", type=float, default=60.0, help="seconds")
  arguments = parser.parse_args()
  try:
    value = ask(arguments)
  except requests.RequestException as error:
    raise SystemExit(f"error: {arguments.url} does not answer ({type(error).__name__}).") from None
  json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
  print()


if __name__ == "__main__":
  main()
