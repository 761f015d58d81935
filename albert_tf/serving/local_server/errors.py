"""The error that a request gets, under gRPC's names and HTTP's numbers."""

HTTP_STATUS = {
  "INVALID_ARGUMENT": 400,
  "OUT_OF_RANGE": 400,
  "UNAUTHENTICATED": 401,
  "PERMISSION_DENIED": 403,
  "NOT_FOUND": 404,
  "ALREADY_EXISTS": 409,
  "ABORTED": 409,
  "FAILED_PRECONDITION": 412,
  "RESOURCE_EXHAUSTED": 429,
  "CANCELLED": 499,
  "UNKNOWN": 500,
  "INTERNAL": 500,
  "DATA_LOSS": 500,
  "UNIMPLEMENTED": 501,
  "UNAVAILABLE": 503,
  "DEADLINE_EXCEEDED": 504,
}
# In the order of their numbers, which TensorFlow shares.
CODES = (
  "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
  "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS "
  "UNAUTHENTICATED"
).split()


class ApiError(Exception):
  """A request that cannot be answered.

  Args:
    message: for the client.
    code: gRPC's name of the status.
  """

  def __init__(self, message: str, *, code: str = "INVALID_ARGUMENT"):
    super().__init__(message)
    self.message = message
    self.code = code

  @property
  def http_status(self) -> int:
    return HTTP_STATUS.get(self.code, 500)
