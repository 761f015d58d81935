"""A SentencePiece model of bytes, refused where the library would accept it and end the process later."""

from google.protobuf.message import DecodeError
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_proto

from albert_tf.errors import UserError


def _fault(model: bytes) -> str:
  """What is wrong with a serialized model; empty if it is whole.

  The pieces come first in the file and what splits and normalises text after them: an upload or a copy that
  broke off between two fields is valid protobuf, loads, and crashes at the first call.
  """
  if not model:
    return "which is empty"
  try:
    proto = model_proto.ModelProto.FromString(model)
  except DecodeError:
    return "which cannot be read as one: it is another file, or cut off"
  if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
    return f"which is cut off after {len(proto.pieces)} pieces ({len(model):,} bytes)"
  return ""


def load_processor(model: bytes, *, source: str) -> sentencepiece.SentencePieceProcessor:
  """The processor of a serialized model.

  Args:
    model: the bytes of a `.model` file.
    source: names it in the message.

  Raises:
    UserError: it is empty, cut off, or no SentencePiece model.
  """
  fault = _fault(model)
  if not fault:
    try:
      return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
      fault = f"which the library refuses ({str(error).strip().splitlines()[0]})"
  raise UserError(
    f"A SentencePiece model was expected. Received: {source}, {fault}. "
    "Check the path (a text vocabulary, .vocab, is not the model), and copy or train the model again."
  )
