"""Before renting a TPU: does the pretraining step fit, how fast is it, what does the run cost.

The step that training runs is compiled with Google's TPU compiler (libtpu), for all cores of the slice together; it
needs no TPU: pip install -e ".[tpu-compile]".

Example:
  python tpu_scripts/compile_for_tpu.py --size=base --topology=v3:16x16 --train_batch_size=4096
  python tpu_scripts/compile_for_tpu.py --flagfile=recipes/albert_xxlarge_v1.flags --topology=v3:16x16
  python tpu_scripts/compile_for_tpu.py --sweep --estimate_only --per_core_batch_size=8
"""

from collections.abc import Sequence
import json
import os

from absl import app, flags
from flag_settings import expand_flag_files
import model_flags

from albert_tf import files
from albert_tf.configs import AlbertConfig, named_sizes
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.planning import plan, report
from albert_tf.planning.chips import parse_topology
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.judge import Judge
from albert_tf.planning.step_compiler import StepCompiler
from albert_tf.training.precision import PRECISIONS

flags.adopt_module_key_flags(model_flags)

# Model and slice.
_SIZE = flags.DEFINE_string(
  "size", None, f"One of {', '.join(named_sizes())}; with --sweep several, with commas."
)
_ALBERT_CONFIG_FILE = flags.DEFINE_string("albert_config_file", None, "JSON of the model, instead of --size.")
_TOPOLOGY = flags.DEFINE_string(
  "topology",
  None,
  "Chip and grid of chips, such as v3:16x16 or v5p:2x2x1; with --sweep several, with commas.",
)

# The step, as in run_pretrain.py.
_TRAIN_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", None, "Examples of one update, over all cores.")
_PER_CORE_BATCH_SIZE = flags.DEFINE_integer(
  "per_core_batch_size", None, "Instead: examples that one core computes at a time."
)
_GRADIENT_ACCUMULATION_STEPS = flags.DEFINE_integer(
  "gradient_accumulation_steps",
  1,
  "Micro-batches an update is computed in; 0: the fewest that fit.",
  lower_bound=0,
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Tokens of an example.")
_MAX_PREDICTIONS = flags.DEFINE_integer(
  "max_predictions_per_seq", 20, "Masked-LM predictions of an example; 77 are 15% of 512 tokens."
)
_MIXED_PRECISION = flags.DEFINE_enum("mixed_precision", "bfloat16", PRECISIONS, "Activations.")
_REMAT = flags.DEFINE_bool("remat", False, "Recompute activations in the backward pass.")
_LAYER_LOOP = flags.DEFINE_enum("layer_loop", "unrolled", ["unrolled", "while"], "How the block is repeated.")
_USE_ONE_HOT = flags.DEFINE_bool("use_one_hot_embeddings", False, "Look tokens up by a matrix product.")
_OPTIMIZER = flags.DEFINE_enum("optimizer", "lamb", ["lamb", "adamw"], "The optimizer.")
_ALL_REDUCE_DTYPE = flags.DEFINE_enum("all_reduce_dtype", "float32", PRECISIONS, "As in training.")

# The run.
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 125_000, "Updates.")
_USD_PER_CHIP_HOUR = flags.DEFINE_float(
  "usd_per_chip_hour", None, "Price of a chip, for the cost of the run."
)

# How to answer.
_OUTPUT_JSON = flags.DEFINE_string("output_json", None, "Where the answer goes as JSON.")
_ESTIMATE_ONLY = flags.DEFINE_bool("estimate_only", False, "By formula, without the compiler: milliseconds.")
_MAX_COMPILES = flags.DEFINE_integer(
  "max_compiles", 4, "Most programs compiled for one answer; the rest is by formula.", lower_bound=1
)
_SHALLOW = flags.DEFINE_bool(
  "shallow",
  None,
  "Compile 3 and 6 layers (with remat 6 and 9) and extend to all, where these are fewer: faster, within 2%. "
  "Default: with --sweep only.",
)
_CHECK_LARGEST = flags.DEFINE_bool(
  "check_largest",
  None,
  "Compile the largest batches too. Default: all but --sweep, where they are by formula.",
)
_COMPILER_PYTHON = flags.DEFINE_string(
  "compiler_python", "", "An interpreter that has jax and libtpu, if it is not this one."
)
_CACHE_DIR = flags.DEFINE_string(
  "cache_dir", "~/.cache/albert_tf/tpu_compile", "Keeps compiled figures; empty for none."
)
_CACHED_ONLY = flags.DEFINE_bool(
  "cached_only", False, "Compile nothing: kept figures where there are any, else by formula."
)
_SWEEP = flags.DEFINE_bool("sweep", False, "A table over sizes and topologies.")

SWEEP_SIZES = ("base", "large", "xlarge", "xxlarge")
SWEEP_TOPOLOGIES = ("v3:16x16", "v4:4x8x8", "v5e:16x16", "v5p:4x8x8", "v6e:16x16")
# Flags of run_pretrain.py that change neither memory nor time: recipes have them.
NOT_USED = frozenset(
  "input_file eval_input_file output_dir init_checkpoint spm_model_file on_bad_record num_warmup_steps "
  "start_warmup_step learning_rate scale_learning_rate poly_power end_learning_rate schedule weight_decay "
  "bias_correction clip_norm sentence_loss masking masked_lm_prob seed iterations_per_loop "
  "report_steps eval_steps save_checkpoints_steps keep_checkpoint_max keep_checkpoint_every_n_steps select_best "
  "max_train_hours eval_batch_size max_eval_steps dry_run doctor tpu tpu_name tpu_zone gcp_project distribution "
  "num_virtual_devices use_xla".split()
)


def _say(line: str) -> None:
  print(line, flush=True)


def _configs() -> dict[str, AlbertConfig]:
  """Name → configuration of every model asked for."""
  file, sizes = _ALBERT_CONFIG_FILE.value, _SIZE.value
  if _SWEEP.value and file is None and sizes is None:
    sizes = ",".join(SWEEP_SIZES)
  model_flags.check_given_once(sizes, file)
  if sizes is not None:
    found = {name: AlbertConfig.from_name(name) for name in sizes.split(",")}
  else:
    found = {str(file): AlbertConfig.from_json_file(str(file))}
  return {name: model_flags.changed(config) for name, config in found.items()}


def _by_default(flag: flags.FlagHolder[bool | None], value: bool) -> bool:
  return value if flag.value is None else flag.value


def _answer(config: AlbertConfig, topology_name: str) -> dict[str, object]:
  topology = parse_topology(topology_name)
  parts = _GRADIENT_ACCUMULATION_STEPS.value
  shape = StepShape(
    per_core_batch_size=plan.split_batch(
      topology,
      train_batch_size=_TRAIN_BATCH_SIZE.value,
      per_core_batch_size=_PER_CORE_BATCH_SIZE.value,
      gradient_accumulation_steps=parts or 1,
    ),
    max_seq_length=_MAX_SEQ_LENGTH.value,
    max_predictions_per_seq=_MAX_PREDICTIONS.value,
    gradient_accumulation_steps=parts or 1,
    mixed_precision=_MIXED_PRECISION.value,
    remat=_REMAT.value,
    optimizer=_OPTIMIZER.value,
    use_one_hot_embeddings=_USE_ONE_HOT.value,
    layer_loop=_LAYER_LOOP.value,
  )
  plan.check_shape(config, shape)
  run = plan.RunSettings(
    num_train_steps=_NUM_TRAIN_STEPS.value,
    all_reduce_dtype=_ALL_REDUCE_DTYPE.value,
    usd_per_chip_hour=_USD_PER_CHIP_HOUR.value,
  )
  compiler = None
  if not _ESTIMATE_ONLY.value:
    compiler = StepCompiler(
      config,
      topology,
      python=_COMPILER_PYTHON.value,
      cache_dir=_CACHE_DIR.value,
      cached_only=_CACHED_ONLY.value,
      all_reduce_dtype=_ALL_REDUCE_DTYPE.value,
      shallow=_by_default(_SHALLOW, _SWEEP.value),
      say=_say,
    )
  judge = Judge(config, topology, compile_step=compiler, compiles=_MAX_COMPILES.value)
  if not parts:
    shape = plan.fewest_parts(judge, shape)
  return {
    **plan.plan_run(judge, shape, run, check_largest=_by_default(_CHECK_LARGEST, not _SWEEP.value)),
    "versions": compiler.versions if compiler else None,
  }


def _check_arguments(argv: Sequence[str]) -> None:
  for argument in argv[1:]:
    name = argument.lstrip("-").partition("=")[0]
    if not argument.startswith("--") or not {name, name.removeprefix("no")} & NOT_USED:
      raise UserError(
        f"Only flags of this command and of recipes are understood. Received: {argument}. See --help."
      )
  if _OUTPUT_JSON.value:  # Minutes of compilation must not end in a name that cannot be written.
    files.makedirs(os.path.dirname(_OUTPUT_JSON.value) or ".")
    if files.isdir(_OUTPUT_JSON.value):
      raise UserError(
        f"--output_json must be a file. Received: the directory {_OUTPUT_JSON.value}. Add a name."
      )
  if _TOPOLOGY.value is None and not _SWEEP.value:
    parse_topology("")  # Lists them.


def main(argv: Sequence[str]) -> int:
  _check_arguments(argv)
  topologies = _TOPOLOGY.value.split(",") if _TOPOLOGY.value else SWEEP_TOPOLOGIES
  pairs = [(name, config, topology) for name, config in _configs().items() for topology in topologies]
  if len(pairs) > 1 and not _SWEEP.value:
    raise UserError(f"One size and one topology have one answer. Received: {len(pairs)} pairs. Add --sweep.")
  answers, rows = [], []
  for done, (name, config, topology) in enumerate(pairs, 1):
    if _SWEEP.value:
      _say(f"[{done}/{len(pairs)}] {name} on {topology}")
    answers.append(answer := {"size": name, **_answer(config, topology)})
    rows.append(report.sweep_row(name, answer))
    if not _SWEEP.value:
      _say(report.describe(answer))
  if _SWEEP.value:
    _say(report.markdown_table(report.SWEEP_HEADER, rows))
  if _OUTPUT_JSON.value:
    with files.atomic_writer(_OUTPUT_JSON.value, "w") as stream:
      json.dump(answers if _SWEEP.value else answers[0], stream, indent=2)
      stream.write("\n")
  return 0


def _parse_flags(argv: Sequence[str]) -> list[str]:
  """Recipes have flags of training too: `_check_arguments` looks at what is left over."""
  return flags.FLAGS([argv[0], *expand_flag_files(argv[1:])], known_only=True)


if __name__ == "__main__":
  app.run(exit_on_user_error(main), flags_parser=_parse_flags)
