"""A study at a scale as commands in order: what each reads, what it leaves, and what it costs beside the others."""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import os
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.planning.flops import training_flops_per_example
from albert_tf.records.manifest import MANIFEST_NAME
from albert_tf.studies.measurements import examples_per_second, training_hours
from albert_tf.studies.stage import (
  EVAL_FILE,
  METRICS_FILE,
  PRETRAINING,
  PROBE,
  RECORDS,
  SPEED,
  TASKS,
  TASKS_FILE,
  TEXT,
  TPU_STEP,
  VOCABULARY,
  Stage,
)
from albert_tf.studies.study import Arm, DataKind, Study, flag_values, last_of_each, model_of

_FOLDERS = {PRETRAINING: "runs", PROBE: "probes", TASKS: "tasks"}
_FIRST_TEXT_FILE = "docs-00000-of-00004.txt"
_TPU_STEP_FLAGS = (
  "--topology=v3:2x2", "--per_core_batch_size=8", "--max_seq_length=512", "--max_predictions_per_seq=20",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """Everything that one call of run_study.py is to do.

  Attributes:
    study, scale, arms, seeds: what is run.
    output_dir: where all of it lies.
    input: patterns of text files with commas; empty for the documentation on this machine.
    spm_model_file: a vocabulary that is there already; empty to train one.
    text_flags, vocab_flags, data_flags, train_flags: of extract_installed_docs.py, train_vocab.py,
      create_pretraining_data.py and run_pretrain.py, for all arms.
    device_flags: of every command that computes on devices; they change no result.
    data_dir: folders of the five tasks; empty for no fine-tuning. task_flags: of run_tasks.py.
    num_workers: processes that make records.
    tpu_step_flags: of compile_for_tpu.py: by formula, or where Google's compiler is.
  """

  study: Study
  scale: str
  arms: tuple[Arm, ...]
  seeds: tuple[int, ...]
  output_dir: str
  input: str = ""
  spm_model_file: str = ""
  text_flags: tuple[str, ...] = ()
  vocab_flags: tuple[str, ...] = ()
  data_flags: tuple[str, ...] = ()
  train_flags: tuple[str, ...] = ()
  device_flags: tuple[str, ...] = ()
  data_dir: str = ""
  task_flags: tuple[str, ...] = ()
  num_workers: int = 1
  tpu_step_flags: tuple[str, ...] = ("--estimate_only",)

  def identity(self) -> dict[str, Any]:
    """What must not change when a study is continued; arms, seeds and tasks may be added."""
    return {
      "study": self.study.name,
      "scale": self.scale,
      "text": self.input or ["installed documentation", *self.text_flags],
      "vocabulary": self.spm_model_file or list(self.vocab_flags),
      "data_flags": list(self.data_flags),
      "train_flags": list(self.train_flags),
    }

  def path(self, *parts: str) -> str:
    return os.path.join(self.output_dir, *parts)

  def seed_dir(self, kind: str, arm: Arm, seed: int) -> str:
    """Of a stage of training, probing or fine-tuning."""
    return self.path(_FOLDERS[kind], arm.name, f"seed-{seed}")

  def run_dir(self, arm: Arm, seed: int) -> str:
    return self.seed_dir(PRETRAINING, arm, seed)

  def speed_dir(self, arm: Arm, turn: int) -> str:
    return self.path("speed", arm.name, f"turn-{turn}")

  def records_dir(self, kind: DataKind) -> str:
    return self.path("records", kind.name)

  @property
  def vocabulary(self) -> str:
    return self.spm_model_file or self.path("vocabulary", "spm.model")

  @functools.cached_property
  def vocab_size(self) -> int:
    """Pieces of the vocabulary; of one that is there already the number is read from its list."""
    if not self.spm_model_file:
      return int(flag_values(self.vocab_flags).get("vocab_size", 30000))
    from albert_tf.tokenization import load_tokenizer

    return int(load_tokenizer(self.spm_model_file).vocab_size)

  def kinds(self) -> list[DataKind]:
    """The record sets that arms, probes and evaluation need, each once."""
    wanted = [*(arm.data for arm in self.arms), *self.study.probes]
    return list(dict.fromkeys([*wanted, *filter(None, [self.study.eval_data])]))

  # Stages.

  def stages(self) -> list[Stage]:
    """All of them in order; those of one seed come before the next seed's, so that a table is whole early."""
    found = [*self._text_stages(), *map(self._records_stage, self.kinds()), *self._speed_stages()]
    for seed in self.seeds:
      for arm in self.arms:
        found.append(self._pretraining_stage(arm, seed))
        found += self._probe_stages(arm, seed)
    if self.data_dir and self.study.fine_tuned:
      found += [self._tasks_stage(arm, seed) for seed in self.seeds for arm in self.arms]
    return found

  def _text_pattern(self) -> str:
    return self.input or self.path("text", "docs-*.txt")

  def _text_stages(self) -> list[Stage]:
    found = []
    command: tuple[str, ...]
    if not self.input:
      command = ("tfrecords_tools/extract_installed_docs.py", f"--output_dir={self.path('text')}",
                 *self.text_flags)  # fmt: skip
      produces = self.path("text", _FIRST_TEXT_FILE)
      found.append(Stage(kind=TEXT, name=TEXT, command=command, produces=produces))
    if not self.spm_model_file:
      command = ("tfrecords_tools/train_vocab.py", f"--input={self._text_pattern()}",
                 f"--model_prefix={self.path('vocabulary', 'spm')}", *self.vocab_flags)  # fmt: skip
      found.append(Stage(kind=VOCABULARY, name=VOCABULARY, command=command, produces=self.vocabulary))
    return found

  def _records_stage(self, kind: DataKind) -> Stage:
    command = (
      "tfrecords_tools/create_pretraining_data.py",
      f"--input={self._first_half() if kind.half else self._text_pattern()}",
      f"--spm_model_file={self.vocabulary}",
      f"--output_dir={self.records_dir(kind)}",
      *last_of_each(self.data_flags),
      f"--sentence_pair={kind.sentence_pair}",
      f"--num_workers={self.num_workers}",
    )
    produces = os.path.join(self.records_dir(kind), MANIFEST_NAME)
    return Stage(kind=RECORDS, name=f"{RECORDS}/{kind.name}", command=command, produces=produces)

  def _first_half(self) -> str:
    """The first half of the text files: a document has the same place, and so the same held-out draw, in the whole."""
    if not self.input:
      return self.path("text", "docs-0000[01]-of-00004.txt")
    found = files.expand_globs(self.input)
    if len(found) < 2:
      raise UserError(
        f"More data is all files of the text against the first half of them, so there must be two. Received: "
        f"--input={self.input}, which is one file. Split it between two documents."
      )
    return ",".join(found[: len(found) // 2])

  def training_flags(self, arm: Arm, scale: str = "") -> tuple[str, ...]:
    """Of run_pretrain.py: those of all arms, then those that set this one apart; of sizes and files the last counts."""
    every = [*self.train_flags, *arm.flags[scale or self.scale]]
    models = [flag for flag in every if flag.startswith(("--size=", "--albert_config_file="))]
    return last_of_each([flag for flag in every if flag not in models or flag == models[-1]])

  def _train_command(
    self, arm: Arm, flags: Sequence[str], output_dir: str, *, evaluate: bool = True
  ) -> tuple[str, ...]:
    held_out = self.records_dir(self.study.eval_data or arm.data)
    return (
      "tpu_scripts/run_pretrain.py",
      f"--input_file={self.records_dir(arm.data)}/train-*",
      *([f"--eval_input_file={held_out}/eval-*"] if evaluate else []),
      f"--output_dir={output_dir}",
      *last_of_each(["--select_best=last", *flags]),  # The held-out set compares arms, so it selects in none.
      *self.device_flags,
    )

  def _pretraining_stage(self, arm: Arm, seed: int) -> Stage:
    flags = [*self.training_flags(arm), f"--seed={seed}"]
    earlier = next((other for other in self.arms if other.name in (arm.after, arm.time_of)), None)
    if arm.after and earlier:
      flags.append(f"--init_checkpoint={self.run_dir(earlier, seed)}")
    timed = self._time_flags(arm, seed) if arm.time_of else []
    run_dir = self.run_dir(arm, seed)
    command = () if timed is None else self._train_command(arm, [*flags, *timed], run_dir)
    costly = earlier if arm.time_of and earlier else arm  # It takes as long.
    return Stage(
      kind=PRETRAINING,
      name=_stage_name(PRETRAINING, arm, seed),
      command=command,
      produces=os.path.join(run_dir, METRICS_FILE),
      cost=self._training_cost(self.training_flags(costly)),
      after=_stage_name(PRETRAINING, earlier, seed) if earlier else "",
    )

  def _training_cost(self, flags: Sequence[str]) -> float:
    """Operations of a whole run."""
    values = flag_values(flags)
    data = {**flag_values(self.data_flags), **values}
    flops = training_flops_per_example(
      model_of(flags, vocab_size=self.vocab_size),
      max_seq_length=int(data.get("max_seq_length", 512)),
      max_predictions_per_seq=int(data.get("max_predictions_per_seq", 20)),
    )
    return flops * int(values.get("num_train_steps", 125_000)) * int(values.get("train_batch_size", 4096))

  def _probe_stages(self, arm: Arm, seed: int) -> list[Stage]:
    """What the trained model reaches on sets it was not trained for, and what its layers do; none for most studies."""
    if not self.study.probes and not self.study.layers:
      return []
    kinds = self.study.probes or (self.study.eval_data or arm.data,)
    flags = [
      *(f"--eval_input_file={kind.name}={self.records_dir(kind)}/eval-*" for kind in kinds),
      f"--eval_batch_size={flag_values(self.train_flags).get('eval_batch_size', '64')}",
      *(["--layer_similarity"] if self.study.layers else []),
    ]
    return [self._stage_of_run(PROBE, arm, seed, "tpu_scripts/evaluate.py", flags, EVAL_FILE)]

  def _tasks_stage(self, arm: Arm, seed: int) -> Stage:
    flags = [f"--data_dir={self.data_dir}", *self.task_flags]
    return self._stage_of_run(TASKS, arm, seed, "tpu_scripts/run_tasks.py", flags, TASKS_FILE)

  def _stage_of_run(
    self, kind: str, arm: Arm, seed: int, script: str, flags: Sequence[str], leaves: str
  ) -> Stage:
    """A stage that reads a finished run."""
    folder, run = self.seed_dir(kind, arm, seed), f"--init_checkpoint={self.run_dir(arm, seed)}"
    return Stage(
      kind=kind,
      name=_stage_name(kind, arm, seed),
      command=(script, run, *flags, f"--output_dir={folder}", *self.device_flags),
      produces=os.path.join(folder, leaves),
      after=_stage_name(PRETRAINING, arm, seed),
    )

  # Speed, and what follows from it.

  def _speed_stages(self) -> list[Stage]:
    speed = self.study.speed
    if speed is None:
      return []
    found = []
    timed = [arm for arm in self.arms if speed.relative_to or arm.time_of]
    for turn, arm in itertools.product(range(speed.rounds), timed):
      folder = self.speed_dir(arm, turn)
      flags = [*self.training_flags(arm, speed.scale), *speed.flags_at(self.scale)]
      command = self._train_command(arm, flags, folder, evaluate=False)
      name, produces = f"{SPEED}/{arm.name}/turn-{turn}", os.path.join(folder, METRICS_FILE)
      cost = self._training_cost(flags)
      found.append(Stage(kind=SPEED, name=name, command=command, produces=produces, cost=cost))
    if speed.relative_to:
      found += [self._tpu_stage(arm, speed.scale) for arm in self.arms]
    return found

  def _tpu_stage(self, arm: Arm, scale: str) -> Stage:
    """The step of one core as the TPU's compiler sees it, 8 examples of length 512; by formula without the compiler."""
    produces = self.path("tpu", f"{arm.name}.json")
    command = (
      "tpu_scripts/compile_for_tpu.py",
      *arm.flags[scale],
      *_TPU_STEP_FLAGS,
      *self.tpu_step_flags,
      f"--output_json={produces}",
    )
    return Stage(kind=TPU_STEP, name=f"tpu/{arm.name}", command=command, produces=produces)

  def _time_flags(self, arm: Arm, seed: int) -> list[str] | None:
    """The other arm's hours, and as many updates as fit into those of its updates; None while it is not finished.

    The rate decays over that number. Where evaluation or compilation takes this arm longer, its end is cut off.
    """
    other = next(other for other in self.arms if other.name == arm.time_of)
    hours = training_hours(self.run_dir(other, seed))
    rate = examples_per_second(self.speed_dir(arm, 0))
    if hours is None or rate is None:
      return None
    batch = int(flag_values(self.training_flags(arm)).get("train_batch_size", 4096))
    steps = max(1, int(hours.updates * 3600 * rate / batch))
    return [f"--num_train_steps={steps}", f"--max_train_hours={hours.processes:.6f}"]


def _stage_name(kind: str, arm: Arm, seed: int) -> str:
  return f"{kind}/{arm.name}/seed-{seed}"
