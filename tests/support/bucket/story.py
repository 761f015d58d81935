"""All commands from text to a served model, in a folder or in a bucket."""

from collections.abc import Callable
import dataclasses
import json
import pathlib
import re
from typing import Any

import numpy as np
from support import tiny_corpus
from support.commands.child_processes import flags_of
from support.commands.forked_commands import Command, ForkedCommands
from support.task_files import write_mrpc
from support.tiny_records import tiny_config

# What differs between two runs of the same thing: clocks, paths, TensorFlow's names of functions and event files.
_TIMED = re.compile(r"_per_second$|^init_checkpoint$|seconds|share|utilization|cost|price|wait")
_NOT_COMPARED = re.compile(
  r"(run\.json|lock\.json.*|flags\.txt|saved_model\.pb|fingerprint\.pb|\.png|tfevents.*|golden.*|models\.config)$"
)


def write_inputs(folder: pathlib.Path) -> None:
  """A corpus, a vocabulary, a configuration and the files of MRPC."""
  rng = np.random.default_rng(3)
  (folder / "corpus").mkdir(parents=True)
  for number in range(2):
    text = tiny_corpus.as_text(tiny_corpus.documents(rng, 30))
    (folder / f"corpus/{number}.txt").write_text(text)
  tiny_corpus.train_model(str(folder / "spm.model"))
  config = tiny_config(vocab_size=150, max_position_embeddings=32, hidden_dropout_prob=0.1)
  (folder / "albert_config.json").write_text(config.to_json_string())
  (folder / "glue").mkdir()
  write_mrpc(folder / "glue/MRPC", 40)


@dataclasses.dataclass(frozen=True)
class Step:
  """A command and its flags."""

  script: str
  flags: dict[str, Any]


def pretraining(place: Callable[[str], str], **changes: Any) -> Step:
  flags = flags_of(f"""
    --input_file={place("records/train-*")} --eval_input_file={place("records/eval-*")} --output_dir={place("run")}
    --albert_config_file={place("albert_config.json")} --max_seq_length=32 --max_predictions_per_seq=5
    --train_batch_size=8 --eval_batch_size=8 --num_train_steps=6 --num_warmup_steps=1 --learning_rate=0.01
    --save_checkpoints_steps=2 --iterations_per_loop=1
  """)
  return Step("tpu_scripts/run_pretrain.py", {**flags, **changes})


def steps(place: Callable[[str], str], work_dir: pathlib.Path) -> dict[str, Step]:
  """The commands in order, by name.

  Args:
    place: function from a name to its path.
    work_dir: a local folder, which the making of records needs.
  """
  records = f"""
    --input={place("corpus/*.txt")} --spm_model_file={place("spm.model")} --output_dir={place("records")}
    --work_dir={work_dir} --max_seq_length=32 --max_predictions_per_seq=5 --dupe_factor=2 --num_shards=2
    --eval_fraction=0.2
  """
  glue = f"""
    --task_name=MRPC --data_dir={place("glue")} --init_checkpoint={place("run")} --output_dir={place("mrpc")}
    --do_train --do_eval --max_seq_length=32 --train_batch_size=8 --num_train_steps=6 --num_warmup_steps=1
    --save_checkpoints_steps=3
  """
  export = f"--model=fill_mask --init_checkpoint={place('run')} --output_dir={place('fill_mask')}"
  to_huggingface = (
    f"--input={place('run')} --output={place('huggingface')} --output_format=huggingface"
  )
  question = {"saved_model": place("fill_mask"), "text": "mi ren [MASK] sol ka"}
  return {
    "records": Step("tfrecords_tools/create_pretraining_data.py", flags_of(records)),
    "pretraining": pretraining(place),
    "export": Step("tpu_scripts/export_saved_model.py", flags_of(export)),
    "fine-tuning": Step("tpu_scripts/run_glue.py", flags_of(glue)),
    "conversion": Step("tpu_scripts/convert_checkpoint.py", flags_of(to_huggingface)),
    "answers": Step("tpu_scripts/fill_mask.py", question),
  }


def run_to_its_end(
  commands: ForkedCommands, step: Step, *, starts: int
) -> tuple[Command, list[str]]:
  """Gives a command again until it ends well; returns it with what the failed ones said."""
  said: list[str] = []
  while True:
    done = commands.run(step.script, **step.flags)
    if done.status == 0:
      return done, said
    said.append(done.stderr)
    assert len(said) < starts, f"{step.script} failed {starts} times: {done.stderr[-3000:]}"


def comparable(contents: dict[str, bytes]) -> dict[str, Any]:
  """Files by name, without what differs from run to run."""
  kept: dict[str, Any] = {}
  for name, data in contents.items():
    if name.endswith("metrics.jsonl"):
      kept[name] = [_untimed(line) for line in data.splitlines()]
    elif name.endswith("results.json"):
      kept[name] = _untimed(data)
    elif not _NOT_COMPARED.search(name):
      kept[name] = data
  return kept


def _untimed(record: bytes) -> dict[str, Any]:
  values = {key: value for key, value in json.loads(record).items() if not _TIMED.search(key)}
  for of_split in values.get("data", {}).values():
    del of_split["file"]  # Of a bucket, or of a folder.
  return values
