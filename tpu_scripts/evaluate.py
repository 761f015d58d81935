"""Evaluates a pretrained model on any held-out records, without training, and writes eval.json.

The paper's table 5 is made of this: what a model trained for one sentence task reaches on another's.

Example:
  python tpu_scripts/evaluate.py --init_checkpoint=runs/sop --output_dir=probes/sop \
    --eval_input_file='sop=records_sop/eval-*' --eval_input_file='nsp=records_nsp/eval-*'
"""

from collections.abc import Mapping, Sequence
import json
import os
from typing import TYPE_CHECKING, Any

from absl import app, flags
from flag_settings import parse_flags

from albert_tf import commands, files
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.startup import load_tensorflow, read_buckets_in_extents
from albert_tf.training.settings import DistributionConfig

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  import tensorflow as tf

  from albert_tf.checkpoints import Checkpoint
  from albert_tf.training.probes import ProbeSet

commands.define_flags(DistributionConfig)

_INIT_CHECKPOINT = flags.DEFINE_string(
  "init_checkpoint",
  None,
  "The model: a run directory (its best checkpoint), a checkpoint in one, an original or Hugging Face folder.",
  required=True,
)
_ALBERT_CONFIG_FILE = flags.DEFINE_string(
  "albert_config_file", "", "JSON of the model. Default: the one beside the weights."
)
_USE_EMA = flags.DEFINE_bool("use_ema", False, "The averages of a run with --ema_decay, not its weights.")
_EVAL_INPUT_FILE = flags.DEFINE_multi_string(
  "eval_input_file", None, "NAME=GLOB: held-out TFRecords, and their name in the reports.", required=True
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Of records that no manifest.json describes.")
_MAX_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq", 20, "Of records that no manifest.json describes."
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "", "Where eval.json goes; local or gs://. Default: beside the model's configuration."
)
_EVAL_BATCH_SIZE = flags.DEFINE_integer("eval_batch_size", 64, "Examples of one batch.", lower_bound=1)
_MAX_EVAL_STEPS = flags.DEFINE_integer(
  "max_eval_steps", None, "At most this many batches of each set. Default: all.", lower_bound=1
)
_LAYER_SIMILARITY = flags.DEFINE_bool(
  "layer_similarity",
  False,
  "Also the L2 distance and the angle between input and output of each layer (ALBERT, figure 1).",
)
EVAL_FILE = "eval.json"
# What only the sentence task needs: some models for masked LM alone come without.
_SENTENCE_PARTS = ("bert/pooler/dense/kernel", "cls/seq_relationship/output_weights")
_MAY_BE_MISSING = "^(bert/pooler|cls/seq_relationship)/"


def _named_globs() -> dict[str, str]:
  """Name → glob pattern, as the command gives them."""
  named: dict[str, str] = {}
  for text in _EVAL_INPUT_FILE.value:
    name, equals, pattern = text.partition("=")
    if not (name and equals and pattern) or "/" in name or name in named:
      raise UserError(
        "Each held-out set has a name of its own, without a slash, and files: --eval_input_file=NAME=GLOB. Received: "
        f"{text!r}{' a second time' if name in named else ''}. For example --eval_input_file='sop=records/eval-*'."
      )
    named[name] = pattern
  return named


def _read_sets(checkpoint: "Checkpoint") -> "list[ProbeSet]":
  from albert_tf.records import PretrainingSpec
  from albert_tf.training.probes import read_probe_set

  vocab_sha256 = checkpoint.load_tokenizer().model_sha256 if checkpoint.tokenizer else ""
  return [
    read_probe_set(
      name,
      files.expand_globs(pattern, what=f"--eval_input_file={name}"),
      vocab_size=checkpoint.config.vocab_size,
      vocab_sha256=vocab_sha256,
      max_position_embeddings=checkpoint.config.max_position_embeddings,
      spec=PretrainingSpec(_MAX_SEQ_LENGTH.value, _MAX_PREDICTIONS.value),
    )
    for name, pattern in _named_globs().items()
  ]


def _has_sentence_head(checkpoint: "Checkpoint") -> bool:
  """Whether a trained one is there; a run without a sentence loss has one without moments."""
  has_moments = any(name.endswith("/adam_m") for name in checkpoint.slots)
  return all(
    name in checkpoint.variables and (not has_moments or f"{name}/adam_m" in checkpoint.slots)
    for name in _SENTENCE_PARTS
  )


def _evaluate(
  checkpoint: "Checkpoint",
  sets: "Sequence[ProbeSet]",
  strategy: "tf.distribute.Strategy",
  distribution: DistributionConfig,
) -> dict[str, dict[str, Any]]:
  from albert_tf.checkpoints import load_weights
  from albert_tf.modeling import AlbertForPreTraining
  from albert_tf.training.distribution import set_precision
  from albert_tf.training.probes import evaluate_sets

  set_precision(distribution.precision)
  with strategy.scope():
    model = AlbertForPreTraining(checkpoint.config, read_positions_only=True)
  load_weights(model, checkpoint, allow_missing=_MAY_BE_MISSING)
  return evaluate_sets(
    model,
    sets,
    strategy=strategy,
    batch_size=_EVAL_BATCH_SIZE.value,
    max_steps=_MAX_EVAL_STEPS.value,
    has_sentence_head=_has_sentence_head(checkpoint),
    with_layer_similarity=_LAYER_SIMILARITY.value,
    use_xla=distribution.use_xla,
  )


def _table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """A line a set."""
  width = max(map(len, [*results, "set"]))
  lines = [f"{'set':<{width}}  examples  masked LM accuracy   loss  sentence task"]
  for name, of_set in results.items():
    accuracy = next((key for key in of_set if key.endswith("accuracy") and not key.startswith("masked")), "")
    sentence = f"{accuracy} {of_set[accuracy]:.1%}" if accuracy else "none"
    lines.append(
      f"{name:<{width}}  {of_set['num_examples']:8,}  {of_set['masked_lm_accuracy']:18.1%} "
      f"{of_set['masked_lm_loss']:6.3f}  {sentence}"
    )
  return lines


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(
      f"All arguments are flags. Received: {' '.join(argv[1:])}. Put values behind --name=, in quotes."
    )
  read_buckets_in_extents()
  load_tensorflow(flags.FLAGS.tpu)
  from albert_tf.checkpoints import read_checkpoint
  from albert_tf.training.distribution import Consensus, is_chief, make_strategy

  distribution = commands.from_flags(DistributionConfig)
  strategy = make_strategy(distribution)
  checkpoint = read_checkpoint(_INIT_CHECKPOINT.value, config_file=_ALBERT_CONFIG_FILE.value)
  checkpoint = checkpoint.averaged() if _USE_EMA.value else checkpoint
  results = _evaluate(checkpoint, _read_sets(checkpoint), strategy, distribution)

  def report() -> None:
    directory = _OUTPUT_DIR.value or checkpoint.directory
    path = os.path.join(directory, EVAL_FILE)
    record = {
      "step": checkpoint.global_step,
      "checkpoint": checkpoint.path,
      "averaged": _USE_EMA.value,
      "sets": results,
    }
    files.makedirs(directory)
    with files.atomic_writer(path, "w") as stream:
      stream.write(json.dumps(record, indent=2) + "\n")
    print(f"{checkpoint.path}, step {checkpoint.global_step:,}", *_table(results), path, sep="\n")

  Consensus(strategy).on_chief(is_chief(strategy), report)


if __name__ == "__main__":
  app.run(main, flags_parser=parse_flags)
