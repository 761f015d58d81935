"""Settings that every run shares: its devices and its depth. No TensorFlow."""

from typing import Literal

from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

MOST_EXAMPLES = 1 << 20  # Of a batch; a greater number would fill the memory.


class DistributionConfig(Settings):
  """Devices and precision of a command.

  Every command that trains or evaluates has these flags:
  `commands.define_flags(DistributionConfig)`, then `commands.from_flags(DistributionConfig)`.
  Without a TPU a run takes the workers that TF_CONFIG names, else all GPUs, else the CPU.
  """

  tpu: str = setting(
    "",
    "The TPU: local (all chips of this VM), a name, or grpc://host:port, with commas between the "
    "hosts of a slice. Empty: no TPU, on a TPU VM too; then TF_CONFIG's workers, else all GPUs, "
    "else the CPU.",
  )
  tpu_zone: str = setting(
    "", "Zone of a TPU that --tpu gives by name. Default: this VM's own, by Google's metadata."
  )
  gcp_project: str = setting(
    "",
    "Google Cloud project of a TPU that --tpu gives by name. Default: this VM's own, by Google's "
    "metadata.",
  )
  mixed_precision: Literal["float32", "bfloat16"] | None = setting(
    None,
    "Type of the matrix products; weights, optimizer and losses are float32. There is no float16 "
    "and no loss scaling. Default: bfloat16 on TPUs, else float32.",
  )
  use_xla: bool = setting(
    False,
    "Compile with XLA on a GPU or the CPU; on a TPU it is always on, and the flag is refused.",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.tpu and self.use_xla:
      raise UserError(
        "--use_xla is for a GPU or the CPU; on a TPU XLA is always on. Received: it with "
        f"--tpu={self.tpu}. Leave --use_xla out."
      )

  @property
  def precision(self) -> str:
    """Type of matrix products: "float32" or "bfloat16"."""
    if self.mixed_precision is not None:
      return self.mixed_precision
    # A TPU's matrix units multiply bfloat16; a CPU without its instructions would be slow.
    return "bfloat16" if self.tpu else "float32"


class OtherDepth(Settings):
  """The depth of trained weights."""

  num_hidden_layers: int | None = setting(
    None,
    "Number of layers, for a model whose layers share all weights. Default: the trained number.",
    minimum=1,
  )


class DepthSettings(Settings):
  """Training of one set of weights for several depths."""

  train_depths: tuple[int, ...] = setting(
    (),
    "Numbers of layers, such as 4,8,12, that the heads learn to read in one forward pass. The "
    "greatest is the model's number.",
    minimum=1,
  )


def micro_batch_size(
  train_batch_size: int, *, num_replicas: int, gradient_accumulation_steps: int
) -> int:
  """Examples of one forward pass on one replica.

  Example: 4096 examples on 8 replicas in 64 micro-batches are 8 at a time.

  Raises:
    UserError: the batch cannot be divided evenly.
  """
  num_parts = num_replicas * gradient_accumulation_steps
  if train_batch_size % num_parts:
    nearest = max(1, train_batch_size // num_parts) * num_parts
    raise UserError(
      "train_batch_size must be divisible by replicas x gradient_accumulation_steps. Received: "
      f"train_batch_size={train_batch_size}, {num_replicas} replicas, "
      f"gradient_accumulation_steps={gradient_accumulation_steps}. Use {nearest}."
    )
  return train_batch_size // num_parts
