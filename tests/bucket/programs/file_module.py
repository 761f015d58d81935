"""The file module does in a bucket what it does on a disk; argument: --place=DIRECTORY. Prints what it found."""

import json
import os
import sys

from albert_tf import files


def main(place: str) -> None:
  seen: list[object] = []

  def attempt(function, *arguments):
    try:
      seen.append(function(*arguments))
    except OSError as error:
      seen.append(["error", error.errno])

  def path(name):
    return os.path.join(place, name)

  def write(name, lines, mode="wb"):
    with files.atomic_writer(path(name), mode) as stream:
      stream.writelines(lines)

  files.makedirs(path("a/b"))
  attempt(files.listdir, path("a/b"))
  write("a/b/bytes", [b"one\n", b"two\n"])
  write("a/text", ["ä\n", "ö\n"], "w")
  write("a/empty", [])
  write("a/large", [bytes(range(256))] * 20_000)
  attempt(files.tree, place)
  attempt(files.listdir, path("a"))
  for name in ("a", "a/b", "a/text", "a/nothing"):
    attempt(files.exists, path(name))
    attempt(files.isdir, path(name))
    attempt(files.listdir, path(name))
  for name in ("a/text", "a/empty", "a/large", "a/nothing"):
    attempt(files.size, path(name))
    attempt(lambda name: files.read_bytes(path(name))[-8:].hex(), name)
  with files.open_binary(path("a/large")) as stream:
    stream.seek(-300, os.SEEK_END)
    seen.append([stream.tell(), stream.read(5).hex(), len(stream.read())])
  seen.append([found.removeprefix(place) for found in files.glob(path("a/*e*"))])
  seen.append([found.removeprefix(place) for found in files.expand_globs([path("a/t*"), path("a/l*")])])
  _move_and_copy(path, write, attempt, seen)
  attempt(files.remove, path("a/nothing"))
  files.remove(path("a"))
  files.remove(path("c"))
  seen.append(files.tree(place))
  seen.append(files.abspath(path("x/../y/./")).removeprefix(files.abspath(place)))
  print(json.dumps(seen))


def _move_and_copy(path, write, attempt, seen):
  files.copy(path("a/text"), path("a/copy"))
  files.rename(path("a/copy"), path("a/b/renamed"))
  attempt(files.copy, path("a/nothing"), path("a/copy"))
  with files.local_copy(path("a")) as local:
    seen.append(
      [files.tree(local), os.path.basename(local), files.read_bytes(os.path.join(local, "text")).hex()]
    )
  files.copy_tree(path("a"), path("c"))
  try:
    write("c/text", iter([b"half", 1 / 0]))
  except ZeroDivisionError:
    seen.append(files.tree(path("c")))
  with files.atomic_directory(path("d"), last="z") as folder:
    for name in ("z", "x/y"):
      files.makedirs(os.path.dirname(os.path.join(folder, name)))
      with files.atomic_writer(os.path.join(folder, name)) as stream:
        stream.write(name.encode())
  try:
    with files.atomic_directory(path("e")) as folder:
      raise ZeroDivisionError
  except ZeroDivisionError:
    seen.append(files.tree(path("")))


if __name__ == "__main__":
  main(sys.argv[1].removeprefix("--place="))
