"""The commands of a study at a scale, in order."""

from collections.abc import Iterator, Mapping, Sequence
import os
import shlex
from typing import Any, NamedTuple

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting
from albert_tf.studies.catalogue import SCALES, STUDIES, Arm, Study


class Task(NamedTuple):
  """One of the five tasks of the paper's average."""

  script: str
  recipe: str
  data: Mapping[str, str] = {"data_dir": ""}  # Name of a flag → file in the task's folder; "" for the folder.
  metrics: tuple[str, ...] = ("accuracy",)  # Of results.json; the score is their mean.
  factor: float = 100.0  # To percent.


def _squad(recipe: str, version: str) -> Task:
  data = {"train_file": f"train-v{version}.json", "predict_file": f"dev-v{version}.json"}
  return Task("run_squad.py", recipe, data, ("test_f1", "test_exact"), 1.0)


TASKS = {
  "squad1": _squad("squad1", "1.1"),
  "squad2": _squad("squad2", "2.0"),
  "mnli": Task("run_glue.py", "glue/mnli"),
  "sst-2": Task("run_glue.py", "glue/sst-2"),
  "race": Task("run_race.py", "race"),
}


class Command(NamedTuple):
  """One command: its name, unique in the study, and a script of this project with its flags."""

  name: str
  words: list[str]


class Plan(Settings):
  """Settings of run_study.py."""

  study: str = setting("sizes", "The study, a table or figure of the paper.", choices=tuple(STUDIES))
  scale: str = setting(
    "laptop", "Scale of the study; its settings are in recipes/studies/STUDY/SCALE.flags.", choices=SCALES
  )
  output_dir: str = setting(help="Directory for all files of the study, local or gs://.")
  input: str = setting("", "Text files: glob patterns with commas, quoted.")
  spm_model_file: str = setting("", "SentencePiece model. Default: a new one is trained.")
  seeds: tuple[int, ...] | None = setting(
    None, "Seeds; each arm has a run for each. Default: the study's on a laptop, else 1.", minimum=0
  )
  arms: tuple[str, ...] = setting((), "Arms of the study to run. Default: all.")
  data_dir: str = setting(
    "",
    "Directory with any of the folders squad1, squad2, mnli, sst-2, race; each arm is fine-tuned on all of them.",
  )
  text_flags: str = setting("", "Additional flags of extract_installed_docs.py, without --input.")
  vocab_flags: str = setting("", "Additional flags of train_vocab.py, without --spm_model_file.")
  data_flags: str = setting("", "Additional flags of create_pretraining_data.py.")
  train_flags: str = setting("", "Additional flags of run_pretrain.py, for all arms, as --name=value …")
  task_flags: str = setting("", "Additional flags of the fine-tuning commands.")
  device_flags: str = setting("", "Flags of all commands that compute on devices.", flag="")

  @property
  def definition(self) -> Study:
    return STUDIES[self.study]

  def all_seeds(self) -> tuple[int, ...]:
    """The given seeds, else the study's."""
    return self.seeds or (self.definition.laptop_seeds if self.scale == "laptop" else (1,))

  def chosen_arms(self) -> tuple[Arm, ...]:
    """The given arms, by default all; in the study's order.

    Raises:
      UserError: an arm is unknown, does not run at this scale, or needs an arm that is not chosen.
    """
    known = {arm.name: arm for arm in self.definition.arms_at(self.scale)}
    chosen = [arm for arm in known.values() if not self.arms or arm.name in self.arms]
    missing = {arm.after for arm in chosen if arm.after in known} - {arm.name for arm in chosen}
    for name in sorted((set(self.arms) - known.keys()) | missing):
      raise UserError(
        f"--arms must be some of {', '.join(known)}, each with the arm it starts from. Received: "
        f"--arms={','.join(self.arms)}. Check {name}."
      )
    return tuple(chosen)

  def identity(self) -> dict[str, Any]:
    """Settings that must not change when a study is continued; arms, seeds and tasks may be added."""
    names = "study scale input spm_model_file text_flags vocab_flags data_flags train_flags"
    return {name: getattr(self, name) for name in names.split()}

  def path(self, *parts: str) -> str:
    return os.path.join(self.output_dir, *parts)

  def seed_dir(self, kind: str, arm: str, seed: int) -> str:
    """Directory of the `runs`, `probes` or `tasks` of an arm and seed."""
    return self.path(kind, arm, f"seed-{seed}")

  def commands(self) -> Iterator[Command]:
    """Yields all commands in order, lazily: a command may depend on files of earlier ones.

    Seeds come one after the other, so that a table is complete early.
    """
    yield from self._data_commands()
    for seed in self.all_seeds():
      for arm in self.chosen_arms():
        yield from self._training_commands(arm, seed)
    for seed in self.all_seeds() if self.data_dir else ():
      for arm in self.chosen_arms():
        yield from self._task_commands(arm, seed)

  def _data_commands(self) -> Iterator[Command]:
    text, vocabulary = self.input, self.spm_model_file
    if not text:
      folder, text = self.path("text"), self.path("text", "docs-*.txt")
      words = ["tfrecords_tools/extract_installed_docs.py", f"--output_dir={folder}"]
      yield Command("text", [*words, *shlex.split(self.text_flags)])
    if not vocabulary:
      prefix = self.path("vocabulary", "spm")
      vocabulary = f"{prefix}.model"
      words = ["tfrecords_tools/train_vocab.py", f"--input={text}", f"--model_prefix={prefix}"]
      yield Command("vocabulary", [*words, *shlex.split(self.vocab_flags)])
    study = self.definition
    wanted = [*(arm.data for arm in self.chosen_arms()), *study.probes, study.eval_data]
    for kind in filter(None, dict.fromkeys(wanted)):
      words = [
        "tfrecords_tools/create_pretraining_data.py",
        f"--input={_first_half(text) if kind == 'half' else text}",
        f"--spm_model_file={vocabulary}",
        f"--output_dir={self.path('records', kind)}",
        f"--num_workers={os.cpu_count() or 1}",
        *shlex.split(self.data_flags),
        f"--sentence_pair={'sop' if kind == 'half' else kind}",
      ]
      yield Command(f"records/{kind}", words)

  def _training_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    """The training run of an arm, and the evaluation of the trained model."""
    study, run_dir, devices = (
      self.definition,
      self.seed_dir("runs", arm.name, seed),
      self.device_flags.split(),
    )
    held_out = study.eval_data or arm.data
    words = [
      "tpu_scripts/run_pretrain.py",
      f"--input_file={self.path('records', arm.data)}/train-*",
      f"--eval_input_file={self.path('records', held_out)}/eval-*",
      f"--output_dir={run_dir}",
      *last_of_each([*shlex.split(self.train_flags), *arm.flags_at(self.scale)]),
      f"--seed={seed}",
      *devices,
    ]
    if arm.after in [other.name for other in self.chosen_arms()]:
      words.append(f"--init_checkpoint={self.seed_dir('runs', arm.after, seed)}")
    yield Command(f"pretraining/{arm.name}/seed-{seed}", words)
    if study.probes or study.layers:
      words = [
        "tpu_scripts/evaluate.py",
        f"--init_checkpoint={run_dir}",
        *(
          f"--eval_input_file={kind}={self.path('records', kind)}/eval-*"
          for kind in study.probes or (held_out,)
        ),
        f"--eval_batch_size={flag_values(self.train_flags.split()).get('eval_batch_size', '64')}",
        *(["--layer_similarity"] if study.layers else []),
        f"--output_dir={self.seed_dir('probes', arm.name, seed)}",
        *devices,
      ]
      yield Command(f"probe/{arm.name}/seed-{seed}", words)

  def _task_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    for name, task in TASKS.items():
      folder = os.path.join(self.data_dir, name)
      if files.isdir(folder):
        words = [
          f"tpu_scripts/{task.script}",
          f"--flagfile=recipes/{task.recipe}.flags",
          *(f"--{flag}={os.path.join(folder, file) if file else folder}" for flag, file in task.data.items()),
          f"--init_checkpoint={self.seed_dir('runs', arm.name, seed)}",
          f"--output_dir={os.path.join(self.seed_dir('tasks', arm.name, seed), name)}",
          "--noexport",
          *shlex.split(self.task_flags),
          *self.device_flags.split(),
        ]
        yield Command(f"tasks/{arm.name}/seed-{seed}/{name}", words)


def _first_half(text: str) -> str:
  """The first half of the text files, whose first document is that of the whole: it is always held out."""
  found = files.expand_globs(text)
  if len(found) < 2:
    raise UserError(f"The study more_data needs at least two text files. Received: --input={text}. Split it.")
  return ",".join(found[: len(found) // 2])


def flag_values(flags: Sequence[str]) -> dict[str, str]:
  """Parses flags `--name=value`; the last one counts, as for absl. `--name` alone is "true"."""
  pairs = (flag.lstrip("-").partition("=") for flag in flags)
  return {name: value if equals else "true" for name, equals, value in pairs}


def last_of_each(flags: Sequence[str]) -> list[str]:
  """Drops flags that a later flag of the same name replaces; --size and --albert_config_file replace each other."""
  names = [flag.lstrip("-").partition("=")[0].replace("albert_config_file", "size") for flag in flags]
  return list(dict(zip(names, flags, strict=True)).values())
