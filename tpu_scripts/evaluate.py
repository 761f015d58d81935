"""Evaluates a pretrained model on held-out records, without training, and writes eval.json.

Table 5 of the paper needs it: a model trained for one sentence task is evaluated on records of
another.

Example:
  python tpu_scripts/evaluate.py --init_checkpoint=runs/sop --output_dir=probes/sop \
    --eval_input_file='sop=records_sop/eval-*' --eval_input_file='nsp=records_nsp/eval-*'
"""

from collections.abc import Iterable, Mapping
import dataclasses
import os
from typing import Any

from albert_tf import files, json_files
from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.progress import markdown_table
from albert_tf.runs.settings import MOST_EXAMPLES, DistributionConfig, OtherDepth
from albert_tf.settings import setting


class Command(OtherDepth):
  """The model, the data and the output."""

  init_checkpoint: str = setting(
    help="The model: a run directory (its newest checkpoint), a checkpoint prefix, an original or "
    "Hugging Face folder."
  )
  albert_config_file: str = setting(
    "", "JSON file of the model. Default: the one in the weights' folder."
  )
  eval_input_file: tuple[str, ...] = setting(
    help="Held-out TFRecords and their name in the reports, as NAME=GLOB", repeated=True
  )
  output_dir: str = setting(
    "", "Directory of eval.json. Default: the folder of the model's configuration."
  )
  eval_batch_size: int = setting(
    64, "Examples of one evaluation batch.", minimum=1, maximum=MOST_EXAMPLES
  )
  max_eval_steps: int | None = setting(
    None, "Largest number of batches of a set. Default: all.", minimum=1
  )
  layer_similarity: bool = setting(
    False,
    "Also measure the L2 distance and the angle between input and output of each layer "
    "(ALBERT, figure 1).",
  )


commands.define_flags(DistributionConfig, Command)


def _named_files(values: Iterable[str]) -> dict[str, list[str]]:
  """Name → record files, of values NAME=GLOB."""
  named: dict[str, list[str]] = {}
  for value in values:
    name, _, pattern = value.partition("=")
    # The name is a key of eval.json, and a part of metrics' names.
    if not name or not pattern or "/" in name or name in named:
      raise UserError(
        "Each held-out set has a name of its own: --eval_input_file=NAME=GLOB. "
        f"Received: {value!r}."
      )
    named[name] = files.expand_globs(pattern, name=f"--eval_input_file={name}")
  return named


def _table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """A row for each set, with the accuracy of its sentence task if it has one."""
  lines = [("set", "examples", "masked LM accuracy", "masked LM loss", "sentence task")]
  for name, metrics in results.items():
    # The model has no trained sentence head, or the records no labels for it.
    sentence = "none"
    for metric in ("sentence_order_accuracy", "next_sentence_accuracy"):
      if metric in metrics:
        sentence = f"{metric} {metrics[metric]:.1%}"
    masked_lm_accuracy = f"{metrics['masked_lm_accuracy']:.1%}"
    masked_lm_loss = f"{metrics['masked_lm_loss']:.3f}"
    lines.append((name, metrics["num_examples"], masked_lm_accuracy, masked_lm_loss, sentence))
  return markdown_table(*lines)


def main() -> None:
  command = commands.from_flags(Command)
  distribution = commands.from_flags(DistributionConfig)
  # Rows of many files: small reads, and not the 64 MiB that TensorFlow would ask a bucket for.
  commands.load_tensorflow(distribution.tpu, reads_extents=True)
  from albert_tf.checkpoints.checkpoint import read_checkpoint
  from albert_tf.pretraining.evaluation import evaluate_checkpoint
  from albert_tf.runs.distribution import Workers, make_strategy

  strategy = make_strategy(distribution)
  checkpoint = read_checkpoint(command.init_checkpoint, config_file=command.albert_config_file)
  # Shared layers may be run fewer or more times than in training.
  config = checkpoint.config.at_depth(command.num_hidden_layers)
  checkpoint = dataclasses.replace(checkpoint, config=config)
  results = evaluate_checkpoint(
    checkpoint,
    _named_files(command.eval_input_file),
    strategy=strategy,
    batch_size=command.eval_batch_size,
    max_steps=command.max_eval_steps,
    precision=distribution.precision,
    with_layers=command.layer_similarity,
    use_xla=distribution.use_xla,
  )

  # All workers have evaluated; the chief writes.
  workers = Workers(strategy)
  with workers.all_fail_together():
    if workers.is_chief:
      path = os.path.join(command.output_dir or checkpoint.directory, "eval.json")
      record = {
        "step": checkpoint.global_step,
        "checkpoint": checkpoint.path,
        "num_hidden_layers": config.num_hidden_layers,
        "sets": results,
      }
      files.makedirs(os.path.dirname(path))
      json_files.write(path, record)
      print(f"{checkpoint.path}, step {checkpoint.global_step:,}\n{_table(results)}\n{path}")


if __name__ == "__main__":
  commands.run(main)
