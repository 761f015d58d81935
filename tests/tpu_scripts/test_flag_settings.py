"""Flags fill settings by name: every flag of run_pretrain.py reaches its own setting, and no other."""

import json
import subprocess
import sys

from support.tiny_records import random_examples, tiny_config, write_records
from support.tiny_run import train_tokenizer

# In a process of its own: flags of two commands must not meet. Prints what each argument changes in the settings.
PROGRAM = """
import json, sys
root, common, arguments = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
sys.path[:0] = [root, root + "/tpu_scripts"]
from absl import flags
import device_flags, run_pretrain

def flat(values, prefix=""):
  for name, value in values.items():
    if isinstance(value, dict):
      yield from flat(value, prefix + name + ".")
    else:
      yield prefix + name, value

def settings(*more):
  flags.FLAGS.unparse_flags()
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  flags.FLAGS(["run_pretrain", *common, *more])
  return dict(flat(run_pretrain._settings().to_dict()))

plain = settings()
changes = {}
for argument in arguments:
  found = settings(argument)
  changes[argument] = {name: found[name] for name in found if found[name] != plain.get(name)}
names = [flag.name for module in (run_pretrain, device_flags) for flag in flags.FLAGS.get_key_flags_for_module(module)]
print(json.dumps([changes, names]))
"""
# What the common arguments of this test say, and what is no setting of a run.
COMMON = {"input_file", "albert_config_file", "output_dir", "spm_model_file"}
NO_SETTING = {"size", "dry_run", "doctor", "usd_per_hour", "tpu_name", "use_xla"}
WITH_ANOTHER = {"masked_lm_prob"}  # Refused without --masking=fresh; tests/training/test_fresh_masking.py.
CHANGES = {
  "--init_checkpoint=x": {"init_checkpoint": "x"},
  "--on_bad_record=skip": {"on_bad_record": "skip"},
  "--sharing=ffn": {"model.sharing": "ffn"},
  "--embedding_size=7": {"model.embedding_size": 7},
  "--hidden_size=64": {
    "model.hidden_size": 64,
    "model.intermediate_size": 256,
    "model.num_attention_heads": 1,
  },
  "--num_hidden_layers=5": {"model.num_hidden_layers": 5},
  "--num_attention_heads=4": {"model.num_attention_heads": 4},
  "--intermediate_size=9": {"model.intermediate_size": 9},
  "--num_hidden_groups=2": {"model.num_hidden_groups": 2},
  "--hidden_dropout_prob=0.2": {"model.hidden_dropout_prob": 0.2},
  "--attention_probs_dropout_prob=0.3": {"model.attention_probs_dropout_prob": 0.3},
  "--use_one_hot_embeddings": {"encoder_options.use_one_hot_embeddings": True},
  "--remat": {"encoder_options.remat": True},
  "--layer_loop=while": {"encoder_options.layer_loop": "while"},
  "--train_batch_size=8": {"step.global_batch_size": 8},
  "--gradient_accumulation_steps=2": {"step.gradient_accumulation_steps": 2},
  "--num_train_steps=9999": {"optimizer.num_train_steps": 9999},
  "--num_warmup_steps=7": {"optimizer.num_warmup_steps": 7},
  "--start_warmup_step=3": {"optimizer.start_warmup_step": 3},
  "--learning_rate=0.5": {"optimizer.learning_rate": 0.5},
  "--scale_learning_rate=sqrt": {},  # Of the default batch, which is the reference.
  "--poly_power=2": {"optimizer.poly_power": 2.0},
  "--end_learning_rate=1e-5": {"optimizer.end_learning_rate": 1e-5},
  "--schedule=original": {"optimizer.schedule": "original"},
  "--optimizer=adamw": {"optimizer.name": "adamw"},
  "--weight_decay=0.1": {"optimizer.weight_decay": 0.1},
  "--bias_correction": {"optimizer.bias_correction": True},
  "--clip_norm=0": {"optimizer.clip_norm": 0.0},
  "--ema_decay=0.9": {"optimizer.ema_decay": 0.9},
  "--on_nonfinite=skip": {"step.on_nonfinite": "skip"},
  "--sentence_loss=off": {"step.sentence_task": ""},
  "--seed=1": {"step.seed": 1},
  "--max_seq_length=6": {"max_seq_length": 6},
  "--max_predictions_per_seq=2": {"max_predictions_per_seq": 2},
  "--masking=fresh": {
    "masking.masked_lm_prob": 0.15,
    "masking.max_predictions_per_seq": 20,
    "masking.ngram_probabilities": [share / (1 + 1 / 2 + 1 / 3) for share in (1, 1 / 2, 1 / 3)],
    "masking.whole_word": "original",
    "masking.redraw_order": False,  # Only where a manifest says what the labels mean.
  },
  "--iterations_per_loop=10": {"iterations_per_loop": 10},
  "--save_checkpoints_steps=11": {"save_checkpoints_steps": 11},
  "--keep_checkpoint_max=12": {"keep_checkpoint_max": 12},
  "--keep_checkpoint_every_n_steps=20000": {"keep_checkpoint_every_n_steps": 20000},
  "--report_steps=5": {"report_steps": 5},
  "--eval_steps=2500": {"eval_steps": 2500},
  "--select_best=last": {"select_best": "last"},
  "--max_train_hours=1.5": {"max_train_hours": 1.5},
  "--eval_batch_size=13": {"eval_batch_size": 13},
  "--max_eval_steps=14": {"max_eval_steps": 14},
  "--profile_steps=2,3": {"profile_steps": [2, 3]},
  "--all_reduce_dtype=bfloat16": {"step.all_reduce_dtype": "bfloat16"},
  "--tpu=local": {"distribution.tpu": "local", "mixed_precision": "bfloat16"},  # A TPU has its own precision.
  "--tpu_zone=z": {"distribution.tpu_zone": "z"},
  "--gcp_project=p": {"distribution.gcp_project": "p"},
  "--distribution=mirrored": {"distribution.distribution": "mirrored"},
  "--num_virtual_devices=2": {"distribution.num_virtual_devices": 2},
  "--mixed_precision=bfloat16": {"mixed_precision": "bfloat16"},
}


def test_every_flag_reaches_its_setting_alone(tmp_path, repository_dir):
  records, config = tmp_path / "train.tfrecord", tmp_path / "config.json"
  write_records(records, random_examples(4, seed=1))
  tokenizer = train_tokenizer(tmp_path)
  model = tiny_config().to_dict()
  del model["vocab_size"]  # A file that gives none takes the records'.
  config.write_text(json.dumps(model))
  held_out = f"--eval_input_file={records}"
  common = [
    f"--input_file={records}",
    f"--albert_config_file={config}",
    "--output_dir=run",
    f"--spm_model_file={tmp_path}/spm.model",
    "--max_seq_length=5",
  ]
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM, str(repository_dir), json.dumps(common), json.dumps([*CHANGES, held_out])],
    capture_output=True,
    text=True,
    check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  changes, names = json.loads(done.stdout.splitlines()[-1])
  assert changes["--masking=fresh"].pop("masking.vocab_sha256") == tokenizer.model_sha256
  assert changes.pop(held_out) == {"eval_input_files": [str(records)]}
  assert changes == CHANGES
  tried = {argument.lstrip("-").partition("=")[0] for argument in [*CHANGES, held_out]}
  assert set(names) - tried == COMMON | NO_SETTING | WITH_ANOTHER
