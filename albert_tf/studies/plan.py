"""The commands of a study at a scale, in order; run_study.py runs them."""

from collections.abc import Iterator, Mapping, Sequence
import os
import shlex
from typing import Any, NamedTuple

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting
from albert_tf.studies.catalogue import SCALES, STUDIES, Arm, Study

# What a flag of its own says of a model; all else is in --albert_config_file.
_MODEL_FLAGS = ("size", "num_hidden_layers")


class Task(NamedTuple):
  """One of the five tasks of the paper's average."""

  script: str
  recipe: str
  # Name of a flag → file in the task's folder; "" for the folder.
  data: Mapping[str, str] = {"data_dir": ""}
  metrics: tuple[str, ...] = ("accuracy",)  # Of results.json; the score is their mean.
  factor: float = 100.0  # To percent.


TASKS = {
  "squad1": Task(
    "run_squad.py",
    "squad1",
    {"train_file": "train-v1.1.json", "predict_file": "dev-v1.1.json"},
    ("test_f1", "test_exact"),
    factor=1.0,
  ),
  "squad2": Task(
    "run_squad.py",
    "squad2",
    {"train_file": "train-v2.0.json", "predict_file": "dev-v2.0.json"},
    ("test_f1", "test_exact"),
    factor=1.0,
  ),
  "mnli": Task("run_glue.py", "glue/mnli"),
  "sst-2": Task("run_glue.py", "glue/sst-2"),
  "race": Task("run_race.py", "race"),
}


class Command(NamedTuple):
  """One command: its name, unique in the study, and a script of this project with its flags."""

  name: str
  words: list[str]


class StudyPlan(Settings):
  """Settings of run_study.py."""

  study: str = setting(
    "sizes",
    "The study: a table or figure of the paper, or changes of its recipe.",
    choices=tuple(STUDIES),
  )
  scale: str = setting(
    "laptop",
    "Scale of the study; its settings are in recipes/studies/STUDY/SCALE.flags.",
    choices=SCALES,
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
    "Directory with any of the folders squad1, squad2, mnli, sst-2, race; each arm is fine-tuned "
    "on all of them.",
  )
  train_flags: str = setting(
    "", "Additional flags of run_pretrain.py, for all arms, as --name=value …"
  )
  # run_study.py reads these from the recipes of the study and its scale.
  text_flags: str = setting("", "Flags of extract_installed_docs.py, without --input.", flag="")
  vocab_flags: str = setting("", "Flags of train_vocab.py, without --spm_model_file.", flag="")
  data_flags: str = setting("", "Flags of create_pretraining_data.py.", flag="")
  device_flags: str = setting("", "Flags of all commands that compute on devices.", flag="")

  @property
  def definition(self) -> Study:
    return STUDIES[self.study]

  def all_seeds(self) -> Sequence[int]:
    """The seeds of the flag, else the study's."""
    if self.seeds:
      return self.seeds
    if self.scale == "laptop":
      return self.definition.laptop_seeds
    return (1,)

  def chosen_arms(self) -> tuple[Arm, ...]:
    """The arms of the flag, by default all; in the study's order.

    Raises:
      UserError: an arm is unknown, does not run at this scale, or needs an arm that is not chosen.
    """
    known = {arm.name: arm for arm in self.definition.arms_at(self.scale)}
    chosen = known
    if self.arms:
      chosen = {name: arm for name, arm in known.items() if name in self.arms}
    unknown = set(self.arms) - known.keys()
    # An arm that starts from another needs that one's checkpoint.
    missing = {arm.after for arm in chosen.values()} & known.keys() - chosen.keys()
    for name in sorted(unknown | missing):
      raise UserError(
        f"--arms must be some of {', '.join(known)}, each with the arm it starts from. Received: "
        f"--arms={','.join(self.arms)}. Check {name}."
      )
    return tuple(chosen.values())

  def identity(self) -> dict[str, Any]:
    """Settings that must not change when a study is continued.

    Arms, seeds and tasks may be added.
    """
    names = "study scale input spm_model_file text_flags vocab_flags data_flags train_flags"
    return {name: getattr(self, name) for name in names.split()}

  def path(self, *names: str) -> str:
    """A path in the study's directory."""
    return os.path.join(self.output_dir, *names)

  def seed_dir(self, kind: str, arm: str, seed: int) -> str:
    """Directory of the `runs`, `probes` or `tasks` of an arm and seed."""
    return self.path(kind, arm, f"seed-{seed}")

  def model_files(self) -> dict[str, dict[str, Any]]:
    """Path → content of each file with an arm's model; `commands` expects them."""
    # A study's file is of a whole model, and an arm changes some of its fields.
    study_fields: dict[str, Any] = {}
    for flag in last_of_each(shlex.split(self.train_flags)):
      name, _, value = flag.lstrip("-").partition("=")
      if name == "albert_config_file":
        study_fields = json_files.read(value)
    contents = {}
    for arm in self.chosen_arms():
      fields = _without_flags(arm.model_at(self.scale))
      if fields:
        contents[self._model_file(arm)] = study_fields | fields
    return contents

  def _model_file(self, arm: Arm) -> str:
    return self.path("models", f"{arm.name}.json")

  def _model_flags(self, arm: Arm) -> list[str]:
    """The flags of run_pretrain.py for an arm's model."""
    model = arm.model_at(self.scale)
    flags = [f"--{name}={model[name]}" for name in _MODEL_FLAGS if name in model]
    if _without_flags(model):
      flags.append(f"--albert_config_file={self._model_file(arm)}")
    return flags

  def commands(self) -> Iterator[Command]:
    """Yields all commands in order, lazily: a command may depend on files of earlier ones.

    Seeds come one after the other, so that a table is complete early.
    """
    yield from self._data_commands()
    for seed in self.all_seeds():
      for arm in self.chosen_arms():
        yield from self._training_commands(arm, seed)
    if self.data_dir:
      for seed in self.all_seeds():
        for arm in self.chosen_arms():
          yield from self._task_commands(arm, seed)

  def _data_commands(self) -> Iterator[Command]:
    """Text and vocabulary, unless the flags name them, and the records that the study reads."""
    text = self.input
    if not text:
      text = self.path("text", "docs-*.txt")
      words = [f"--output_dir={self.path('text')}"] + shlex.split(self.text_flags)
      yield Command("text", ["tfrecords_tools/extract_installed_docs.py"] + words)

    vocabulary = self.spm_model_file
    if not vocabulary:
      prefix = self.path("vocabulary", "spm")
      vocabulary = f"{prefix}.model"
      words = [f"--input={text}", f"--model_prefix={prefix}"] + shlex.split(self.vocab_flags)
      yield Command("vocabulary", ["tfrecords_tools/train_vocab.py"] + words)

    # Arms may share records: each kind is made once.
    study = self.definition
    kinds = [arm.data for arm in self.chosen_arms()]
    kinds.extend(study.probes)
    if study.eval_data:
      kinds.append(study.eval_data)
    for kind in dict.fromkeys(kinds):
      kind_text = text
      sentence_pair = kind
      if kind == "half":
        kind_text = _first_half(text)
        sentence_pair = "sop"
      words = [
        "tfrecords_tools/create_pretraining_data.py",
        f"--input={kind_text}",
        f"--spm_model_file={vocabulary}",
        f"--output_dir={self.path('records', kind)}",
        f"--num_workers={os.cpu_count() or 1}",
      ]
      words.extend(shlex.split(self.data_flags))
      words.append(f"--sentence_pair={sentence_pair}")
      yield Command(f"records/{kind}", words)

  def _training_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    """The training run of an arm, and the evaluation of the trained model."""
    study = self.definition
    run_dir = self.seed_dir("runs", arm.name, seed)
    held_out = study.eval_data or arm.data

    # An arm's flags replace those of all arms.
    train_flags = shlex.split(self.train_flags)
    words = [
      "tpu_scripts/run_pretrain.py",
      f"--input_file={self.path('records', arm.data)}/train-*",
      f"--eval_input_file={self.path('records', held_out)}/eval-*",
      f"--output_dir={run_dir}",
    ]
    words.extend(last_of_each(train_flags + self._model_flags(arm) + arm.flags_at(self.scale)))
    words.append(f"--seed={seed}")
    words.extend(self.device_flags.split())
    if arm.after in {other.name for other in self.chosen_arms()}:
      words.append(f"--init_checkpoint={self.seed_dir('runs', arm.after, seed)}")
    yield Command(f"pretraining/{arm.name}/seed-{seed}", words)

    if study.probes or study.layers:
      words = ["tpu_scripts/evaluate.py", f"--init_checkpoint={run_dir}"]
      for kind in study.probes or (held_out,):
        words.append(f"--eval_input_file={kind}={self.path('records', kind)}/eval-*")
      words.extend(flag for flag in train_flags if flag.startswith("--eval_batch_size="))
      if study.layers:
        words.append("--layer_similarity")
      words.append(f"--output_dir={self.seed_dir('probes', arm.name, seed)}")
      words.extend(self.device_flags.split())
      yield Command(f"probe/{arm.name}/seed-{seed}", words)

  def _task_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    """Fine-tuning of an arm's trained model on each task that --data_dir has."""
    for name, task in TASKS.items():
      folder = os.path.join(self.data_dir, name)
      if not files.isdir(folder):
        continue
      words = [f"tpu_scripts/{task.script}", f"--flagfile=recipes/{task.recipe}.flags"]
      for flag, file_name in task.data.items():
        path = folder
        if file_name:
          path = os.path.join(folder, file_name)
        words.append(f"--{flag}={path}")
      words.append(f"--init_checkpoint={self.seed_dir('runs', arm.name, seed)}")
      words.append(f"--output_dir={self.seed_dir('tasks', arm.name, seed)}/{name}")
      words.append("--noexport")
      words.extend(self.device_flags.split())
      yield Command(f"tasks/{arm.name}/seed-{seed}/{name}", words)


def _without_flags(model: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of an arm's model that run_pretrain.py reads from a file."""
  return {name: value for name, value in model.items() if name not in _MODEL_FLAGS}


def _first_half(text: str) -> str:
  """The first half of the text files.

  It begins with the same document as all of the text, and the first document is always held out.
  """
  paths = files.expand_globs(text)
  if len(paths) < 2:
    raise UserError(
      f"The study more_data needs at least two text files. Received: --input={text}. Split it."
    )
  return ",".join(paths[: len(paths) // 2])


def last_of_each(flags: Sequence[str]) -> list[str]:
  """Drops flags that a later flag of the same name replaces.

  --size names a whole model: it replaces an --albert_config_file before it, too.
  """
  last: dict[str, str] = {}
  for flag in flags:
    name = flag.lstrip("-").partition("=")[0]
    if name == "size":
      last.pop("albert_config_file", None)
    last[name] = flag
  return list(last.values())
