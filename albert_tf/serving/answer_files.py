"""Files of answers: JSON lines, Parquet and `.npy`, written in parts that outlive a kill."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import json
import os
from typing import IO, Any, NamedTuple, Protocol, Self

import numpy as np
import tensorflow as tf

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.settings import differences

_NUM_EXAMPLES = 10  # Of damaged rows.
_STATE = "state.json"


class AnsweredRow(NamedTuple):
  """A row of the output.

  Attributes:
    id: names it.
    answer: output → value; None for a damaged row.
    error: why there is no answer, "" if there is one.
  """

  id: str
  answer: Mapping[str, Any] | None
  error: str


class AnswerFormat(Protocol):
  """How answers are written."""

  def encode(self, rows: Sequence[AnsweredRow]) -> bytes:
    """The bytes of a part."""

  def join(self, parts: Iterable[bytes], num_rows: int, stream: IO[bytes]) -> None:
    """Writes the file of all parts."""


def answer_format(path: str, outputs: Mapping[str, Any]) -> AnswerFormat:
  """The format of a file's name, for outputs with their `TensorInfo`.

  Raises:
    UserError: the name has another ending, or the outputs do not fit into .npy.
  """
  suffix = os.path.splitext(path)[1].lower()
  if suffix == ".jsonl":
    return _JsonLines(outputs)
  if suffix == ".parquet":
    return _Parquet(outputs)
  if suffix == ".npy":
    return _Array(outputs)
  raise UserError(
    f"The name of an output ends in .jsonl, .parquet or .npy. Received: --output={path}. "
    "Choose one of these."
  )


# ------------------------------------------------------------------ formats


class _JsonLines:
  """An object for each row: `id`, the outputs, and of a damaged row `error`, with null for the rest."""

  def __init__(self, outputs: Mapping[str, Any]):
    self._outputs = outputs

  def encode(self, rows: Sequence[AnsweredRow]) -> bytes:
    lines = []
    for row in rows:
      answer = row.answer or dict.fromkeys(self._outputs)
      values = {"id": row.id} | {name: _json_value(value) for name, value in answer.items()}
      if row.error:
        values["error"] = row.error
      lines.append(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines).encode()

  def join(self, parts: Iterable[bytes], num_rows: int, stream: IO[bytes]) -> None:
    del num_rows
    for part in parts:
      stream.write(part)


class _Parquet(_JsonLines):
  """The same as columns; a row group for each part. `error` is null where there is an answer."""

  def join(self, parts: Iterable[bytes], num_rows: int, stream: IO[bytes]) -> None:
    del num_rows
    import pyarrow  # Slow to import.
    from pyarrow import parquet

    columns = {name: _arrow_type(info) for name, info in self._outputs.items()}
    text = pyarrow.string()
    schema = pyarrow.schema({"id": text} | columns | {"error": text})
    with parquet.ParquetWriter(stream, schema) as writer:
      for part in parts:
        rows = [json.loads(line) for line in part.splitlines()]
        writer.write_table(pyarrow.Table.from_pylist(rows, schema))


class _Array:
  """One output as an array float32 [rows, …]; NaN for a damaged row."""

  def __init__(self, outputs: Mapping[str, Any]):
    # The axes after the batch must have one size for all rows.
    fitting = {}
    for name, info in outputs.items():
      shape = tf.TensorShape(info.tensor_shape)[1:]
      if tf.as_dtype(info.dtype).is_floating and shape.is_fully_defined():
        fitting[name] = tuple(shape.as_list())
    if len(fitting) != 1:
      raise UserError(
        "A .npy file has one output, of numbers with a fraction and of one size for all rows. "
        f"Received: {', '.join(fitting) or 'none such'} of {', '.join(outputs)}. Name it with "
        "--outputs, or write .jsonl or .parquet."
      )
    [(self._name, self._shape)] = fitting.items()

  def encode(self, rows: Sequence[AnsweredRow]) -> bytes:
    array = np.full((len(rows), *self._shape), np.nan, np.float32)
    for number, row in enumerate(rows):
      if row.answer is not None:
        array[number] = row.answer[self._name]
    return array.tobytes()

  def join(self, parts: Iterable[bytes], num_rows: int, stream: IO[bytes]) -> None:
    header = {
      "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
      "fortran_order": False,
      "shape": (num_rows, *self._shape),
    }
    np.lib.format.write_array_header_1_0(stream, header)
    for part in parts:
      stream.write(part)


def _json_value(value: Any) -> Any:
  """A value of an output as JSON has it."""
  if value is None:
    return None
  array = np.asarray(value)
  if array.dtype.kind in "OS":
    array = np.vectorize(bytes.decode, otypes=[object])(array)
  # The shortest decimal fraction that is this number of 32 bits: 0.1, not 0.10000000149011612.
  if array.dtype == np.float32:
    array = array.astype(str).astype(np.float64)
  return array.tolist()


def _arrow_type(info: Any) -> Any:
  """The type of a cell for the `TensorInfo` of an output, whose first axis is the batch."""
  import pyarrow

  dtype = tf.as_dtype(info.dtype)
  kind = pyarrow.string() if dtype == tf.string else pyarrow.from_numpy_dtype(dtype.as_numpy_dtype)
  for _ in info.tensor_shape.dim[1:]:
    kind = pyarrow.list_(kind)
  return kind


# ------------------------------------------------------------------ parts


class AnswerParts:
  """The unfinished output: the folder `OUTPUT.partial`, with a file for each part.

  A part is there as a whole or not at all, and `state.json` names the last one. So a killed run
  continues after it. One process at a time has the folder.

  Args:
    output: the path of the file.
    identity: what the answers depend on, as JSON has it.

  Attributes:
    rows: the number of rows in the parts so far.
    damaged: the number of rows among them that have no answer.
    examples: the first of these.

  Raises:
    UserError: the output is there, or the folder is of another identity.
  """

  def __init__(self, output: str, identity: Mapping[str, Any]):
    self._output = output
    self._directory = f"{output}.partial"
    self._identity = json.loads(json.dumps(identity))
    self._lock = DirectoryLock(self._directory, flag="--output")
    self._num_parts = 0
    # Whether all parts are there. Then the output may be there as well, and the folder not yet gone.
    self._is_whole = False
    self.rows = 0
    self.damaged = 0
    self.examples: list[str] = []

  def __enter__(self) -> Self:
    self._lock.acquire()
    try:
      self._read_state()
      if files.exists(self._output) and not self._is_whole:
        raise UserError(
          f"Answers are written to a new file. Received: {self._output}, which is there. Choose "
          "another --output, or remove it."
        )
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *_: object) -> None:
    self._lock.release()
    is_finished = self._is_whole and files.exists(self._output)
    # An input without an answer leaves nothing to continue.
    if is_finished or not self._has_state():
      files.remove(self._directory)

  def _has_state(self) -> bool:
    return files.exists(os.path.join(self._directory, _STATE))

  def _read_state(self) -> None:
    path = os.path.join(self._directory, _STATE)
    state = json_files.find(path)
    if not state:
      return
    json_files.check_fields(
      state,
      path,
      identity=dict,
      parts=int,
      is_whole=bool,
      rows=int,
      damaged=int,
      examples=list,
    )
    changes = differences(state["identity"], self._identity)
    if changes:
      raise UserError(
        "An unfinished output is continued with the same input, model and flags. Received: "
        f"{self._directory} with {'; '.join(changes)}. Give those of before, remove this folder, or "
        "choose another --output."
      )
    self._num_parts = state["parts"]
    self._is_whole = state["is_whole"]
    self.rows = state["rows"]
    self.damaged = state["damaged"]
    self.examples = state["examples"]

  def _write_state(self) -> None:
    state = {
      "identity": self._identity,
      "parts": self._num_parts,
      "is_whole": self._is_whole,
      "rows": self.rows,
      "damaged": self.damaged,
      "examples": self.examples,
    }
    json_files.write(os.path.join(self._directory, _STATE), state)

  def add(self, content: bytes, *, num_rows: int, damaged: Sequence[str]) -> None:
    """Adds a part; `damaged` has a line about each row without an answer."""
    self._lock.check()
    files.write_bytes(self._part(self._num_parts), content)
    self._num_parts += 1
    self.rows += num_rows
    self.damaged += len(damaged)
    self.examples += damaged[: _NUM_EXAMPLES - len(self.examples)]
    self._write_state()

  def finish(self, join: Callable[[Iterable[bytes], int, IO[bytes]], None]) -> None:
    """Writes the output with a format's `join`; the folder then goes."""
    if not self._is_whole:
      self._is_whole = True
      self._write_state()
    if not files.exists(self._output):
      with files.atomic_writer(self._output) as stream:
        join(self._contents(), self.rows, stream)

  def _contents(self) -> Iterator[bytes]:
    for number in range(self._num_parts):
      yield files.read_bytes(self._part(number))

  def _part(self, number: int) -> str:
    return os.path.join(self._directory, f"part-{number:06d}")
