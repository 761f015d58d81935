"""Bytes that an instruction moves to and from HBM, read from shapes and layouts."""

import math
import re

from .program import Computation, Executed, Instruction, Program, first_group

_FUSED = re.compile(r"calls=%?([\w.\-]+)")
# f32[768,3072]{1,0:T(8,128)S(1)}: type, lengths, the order of the axes with the minor one first,
# tiles, and the memory space, which is HBM where none is named.
_ARRAY = re.compile(
  r"\b(?:pred|[a-z]+(?P<bits>\d+)\w*)\[(?P<lengths>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?"
)
_TILE = re.compile(r"T\(([\d,]+)\)")
_ON_CHIP = re.compile(r"S\([1-9]")
# They run beside the computation. The first two parts of their shape are the ends of the copy.
COPIES_BESIDE = ("copy-start", "slice-start", "async-start")
_READ_IN_PART = ("slice", "dynamic-slice", "gather")
# They write in place. The value: which operand holds what is new.
_WRITTEN_IN_PART = {"dynamic-update-slice": 1, "scatter": 2}


def hbm_bytes(executed: Executed, program: Program) -> int:
  """Bytes that one run of an instruction moves to and from HBM.

  These are its results and operands that are not kept on the chip. Of arrays that are only sliced,
  or written in part, that part counts.
  """
  instruction = executed.instruction
  if instruction.kind in COPIES_BESIDE:
    ends = list(_ARRAY.finditer(instruction.shape))[:2]
    # A slice is smaller than what it is cut from, and only the slice moves.
    moved = min(map(_padded_bytes, ends), default=0)
    return moved * sum(map(_is_in_hbm, ends))

  # A fusion's operands are the parameters of its body. Any other instruction is its own body.
  body: Computation = {instruction.name: instruction}
  fused = first_group(_FUSED, instruction.text)
  if fused:
    body = program.computations.get(fused, {})
  return _read_bytes(executed, body, program) + _written_bytes(executed, body)


def _read_bytes(executed: Executed, body: Computation, program: Program) -> int:
  outer = executed.computation
  parameters = {
    instruction.operands[0]: name
    for name, instruction in body.items()
    if instruction.kind == "parameter"
  }
  total = 0
  for number, operand in enumerate(executed.instruction.operands):
    if operand not in outer:
      continue
    complete = _bytes_in_hbm(outer[operand].shape)
    touched = _touched_bytes(parameters.get(str(number), operand), body, outer, program)
    total += _smaller(complete, touched)
  return total


def _written_bytes(executed: Executed, body: Computation) -> int:
  complete = _bytes_in_hbm(executed.instruction.shape)
  root = next(reversed(body.values()), executed.instruction)
  # A bitcast only gives another shape to the same bytes.
  while root.kind == "bitcast" and root.operands[0] in body:
    root = body[root.operands[0]]
  if root.kind not in _WRITTEN_IN_PART:
    return complete
  new = root.operands[_WRITTEN_IN_PART[root.kind]]
  return _smaller(complete, _bytes_of(new, body, executed.computation))


def _smaller(complete: int, in_part: int | None) -> int:
  return complete if in_part is None else min(complete, in_part)


def _touched_bytes(
  name: str, body: Computation, outer: Computation, program: Program
) -> int | None:
  """Bytes of a value that its users in a body read, where those only take slices or rows of it.

  Returns:
    None where all of it may be read.
  """
  is_result = name == next(reversed(body))
  if is_result:
    return None
  total = 0
  for user in body.values():
    if name in user.operands:
      touched = _touched_by(user, name, body, outer, program)
      if touched is None:
        return None
      total += touched
  return total


def _touched_by(
  user: Instruction, name: str, body: Computation, outer: Computation, program: Program
) -> int | None:
  """Bytes of a value that one of its users reads; None where it may be all."""
  if user.kind == "bitcast":
    return _touched_bytes(user.name, body, outer, program)
  fused = first_group(_FUSED, user.text)
  if fused and user.kind == "fusion":
    return _touched_by_fusion(fused, user, name, body, program)
  is_first = user.operands[0] == name
  if is_first and user.kind in _READ_IN_PART:
    return _bytes_of(user.name, body, outer)
  if is_first and user.kind in _WRITTEN_IN_PART:
    return 0  # Written in place, not read.
  return None


def _touched_by_fusion(
  fused: str, user: Instruction, name: str, outer: Computation, program: Program
) -> int | None:
  """Bytes that a fusion within a fusion reads of its operand: what it does with its parameters."""
  body = program.computations[fused]
  total = 0
  for parameter in body.values():
    if parameter.kind != "parameter" or user.operands[int(parameter.operands[0])] != name:
      continue
    touched = _touched_bytes(parameter.name, body, outer, program)
    if touched is None:
      return None
    total += touched
  return total


def _bytes_of(name: str, body: Computation, outer: Computation) -> int | None:
  """Bytes of a value, wherever it is kept; None where neither computation has it."""
  instruction = body.get(name) or outer.get(name)
  if instruction is None:
    return None
  return sum(map(_padded_bytes, _ARRAY.finditer(instruction.shape)))


def _bytes_in_hbm(shape: str) -> int:
  """Bytes of those arrays of a shape, which may be a tuple's, that are kept in HBM."""
  return sum(_padded_bytes(array) for array in _ARRAY.finditer(shape) if _is_in_hbm(array))


def _is_in_hbm(array: re.Match[str]) -> bool:
  return not _ON_CHIP.search(array["layout"] or "")


def _padded_bytes(array: re.Match[str]) -> int:
  """Bytes of an array in its tiles: the minor axes are filled up to a tile's lengths.

  bf16[2,77,100]{2,1,0:T(8,128)}: 2 × 80 × 128 numbers of 2 bytes.
  """
  bits = int(array["bits"] or 8)
  layout = array["layout"] or ""
  lengths = _numbers(array["lengths"])
  minor_to_major = _numbers(layout.partition(":")[0])
  tile = _TILE.search(layout)
  if tile and len(minor_to_major) == len(lengths):
    tile_lengths = reversed(_numbers(tile[1]))
    for axis, tile_length in zip(minor_to_major, tile_lengths, strict=False):
      lengths[axis] = math.ceil(lengths[axis] / tile_length) * tile_length
  return bits * math.prod(lengths) // 8


def _numbers(text: str) -> list[int]:
  """ "8,128" → [8, 128]."""
  return [int(number) for number in text.split(",") if number]
