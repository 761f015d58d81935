"""Exports a trained model as one file for LiteRT (TensorFlow Lite) or ONNX Runtime: ids in, shared weights once.

Prints the file's size, its ratio to the parameters, and how near its outputs are to the Python model's.

Example:
  python tpu_scripts/export_small_model.py --model classifier --init_checkpoint RUN --format tflite_int8 \
    --max_seq_length 128 --output mrpc.tflite
"""

from collections.abc import Sequence

from absl import app, flags, logging

from albert_tf.configs.task import LITE_KINDS
from albert_tf.errors import exit_on_user_error
from albert_tf.startup import load_tensorflow

_MODEL = flags.DEFINE_enum(
  "model",
  None,
  LITE_KINDS,
  "encoder: vectors; fill_mask: logits of masked positions; classifier: probabilities, or a regression's value; "
  "question_answering: scores of answer starts and ends.",
  required=True,
)
_INIT_CHECKPOINT = flags.DEFINE_string(
  "init_checkpoint",
  None,
  "Run directory of pretraining or fine-tuning (its best checkpoint is taken, else its newest), or a prefix.",
  required=True,
)
_FORMAT = flags.DEFINE_enum(
  "format",
  None,
  ["tflite", "tflite_float16", "tflite_int8", "onnx", "onnx_float16"],
  "tflite_float16: weights in half precision; tflite_int8: dynamic-range quantisation; onnx_float16: half "
  "precision throughout but softmax, LayerNorm statistics and outputs.",
  required=True,
)
_OUTPUT = flags.DEFINE_string("output", None, "The file, which must not exist.", required=True)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
  "max_seq_length",
  None,
  "Tokens of a row; 0: free (onnx). Default: the task's or the model's for tflite, free for onnx.",
  lower_bound=0,
)
_BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", None, "Rows of a batch; 0: free. Default: 1 for tflite, free for onnx.", lower_bound=0
)
_MAX_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq",
  None,
  "fill_mask: positions of a row; 0: free (onnx). Default: 1 for tflite, free for onnx.",
  lower_bound=0,
)
_USE_EMA = flags.DEFINE_bool(
  "use_ema", False, "Take the averages that a run with --ema_decay kept instead of its weights."
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
  logging.set_verbosity(logging.WARNING)
  load_tensorflow()
  from albert_tf.serving.small.export import export_small_model
  from albert_tf.serving.small.ids_model import Sizes

  report = export_small_model(
    model=_MODEL.value,
    init_checkpoint=_INIT_CHECKPOINT.value,
    format=_FORMAT.value,
    output=_OUTPUT.value,
    sizes=Sizes(
      batch_size=_BATCH_SIZE.value,
      max_seq_length=_MAX_SEQ_LENGTH.value,
      max_predictions_per_seq=_MAX_PREDICTIONS.value,
    ),
    use_ema=_USE_EMA.value,
  )
  print(f"Exported {_MODEL.value} to {report.path} ({_FORMAT.value})")
  print(
    f"  size: {report.num_bytes:,} bytes = {report.ratio:.3f} x the {report.num_parameters:,} parameters "
    f"({report.parameter_bytes:,} bytes)"
  )
  for name, parity in report.parity.items():
    top_1 = "" if parity.top_1 is None else f", same best {parity.top_1:.1%}"
    print(f"  {name}: largest difference {parity.max_difference:.2g}, cosine >= {parity.cosine:.6f}{top_1}")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
