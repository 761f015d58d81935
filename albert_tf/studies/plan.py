"""A study at a scale as commands in order: what each reads, and what it leaves when it has succeeded."""

from collections.abc import Iterator, Sequence
import dataclasses
import os
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.studies import results
from albert_tf.studies.study import Arm, DataKind, Study, flag_values, last_of_each


@dataclasses.dataclass(frozen=True)
class Command:
  """One command of a study.

  Attributes:
    name: unique in the study.
    words: a script of this project and its flags.
    result: the file that it leaves when it has succeeded; of a pretraining run the directory.
  """

  name: str
  words: tuple[str, ...]
  result: str

  def is_done(self) -> bool:
    """Whether its result is there; a pretraining run is asked how far it is."""
    if not self.words[0].endswith("run_pretrain.py"):
      return files.exists(self.result)
    reports = results.read_reports(self.result)
    last = {report["split"]: report["step"] for report in reports}
    steps = int(flag_values(self.words).get("num_train_steps", 125_000))
    evaluates = "eval_input_file" in flag_values(self.words)
    return last.get("train", 0) >= steps and (not evaluates or last.get("eval", 0) >= steps)


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
    data_dir: folders of the five tasks; empty for no fine-tuning.
    task_flags: of the commands that fine-tune.
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

  def run_dir(self, arm: Arm, seed: int) -> str:
    return self.path("runs", arm.name, f"seed-{seed}")

  def probe_dir(self, arm: Arm, seed: int) -> str:
    return self.path("probes", arm.name, f"seed-{seed}")

  def tasks_dir(self, arm: Arm, seed: int) -> str:
    return self.path("tasks", arm.name, f"seed-{seed}")

  def training_flags(self, arm: Arm) -> tuple[str, ...]:
    """Of run_pretrain.py: those of all arms, then those that set this one apart."""
    return last_of_each([*self.train_flags, *arm.flags[self.scale]])

  def commands(self) -> Iterator[Command]:
    """All commands, in order; one may read what those before it have left, so each is made when it is its turn.

    Those of one seed come before the next seed's, so that a table is whole early.
    """
    yield from self._data_commands()
    for seed in self.seeds:
      for arm in self.arms:
        yield from self._training_commands(arm, seed)
    if self.data_dir and self.study.fine_tuned:
      for seed in self.seeds:
        for arm in self.arms:
          yield from self._task_commands(arm, seed)

  # Text, vocabulary, records.

  @property
  def _vocabulary(self) -> str:
    return self.spm_model_file or self.path("vocabulary", "spm.model")

  def _records_dir(self, kind: DataKind) -> str:
    return self.path("records", kind.name)

  def _data_commands(self) -> Iterator[Command]:
    text = self.input or self.path("text", "docs-*.txt")
    if not self.input:
      words = (
        "tfrecords_tools/extract_installed_docs.py",
        f"--output_dir={self.path('text')}",
        *self.text_flags,
      )
      yield Command("text", words, self.path("text", "docs-00000-of-00004.txt"))
    if not self.spm_model_file:
      prefix = f"--model_prefix={self.path('vocabulary', 'spm')}"
      words = ("tfrecords_tools/train_vocab.py", f"--input={text}", prefix, *self.vocab_flags)
      yield Command("vocabulary", words, self._vocabulary)
    wanted = [*(arm.data for arm in self.arms), *self.study.probes, *filter(None, [self.study.eval_data])]
    for kind in dict.fromkeys(wanted):
      directory = self._records_dir(kind)
      words = (
        "tfrecords_tools/create_pretraining_data.py",
        f"--input={self._first_half() if kind.half else text}",
        f"--spm_model_file={self._vocabulary}",
        f"--output_dir={directory}",
        *last_of_each([f"--num_workers={os.cpu_count() or 1}", *self.data_flags]),
        f"--sentence_pair={kind.sentence_pair}",
      )
      yield Command(f"records/{kind.name}", words, os.path.join(directory, "manifest.json"))

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

  # Training, and what is asked of the trained model.

  def _training_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    place, run_dir = f"{arm.name}/seed-{seed}", self.run_dir(arm, seed)
    flags = [*self.training_flags(arm), f"--seed={seed}"]
    earlier = next((other for other in self.arms if other.name in (arm.after, arm.time_of)), None)
    if earlier and arm.after:
      flags.append(f"--init_checkpoint={self.run_dir(earlier, seed)}")
    if earlier and arm.time_of:
      # How many updates fit into the other arm's hours must be known before the rate can decay over them.
      timed = self.path("speed", place)
      few = ("--num_train_steps=60", "--num_warmup_steps=1", "--iterations_per_loop=20")
      yield Command(f"speed/{place}", self._train_words(arm, [*flags, *few], timed, evaluate=False), timed)
      flags += self._time_flags(arm, self.run_dir(earlier, seed), timed)
    yield Command(f"pretraining/{place}", self._train_words(arm, flags, run_dir), run_dir)
    kinds = self.study.probes or (self.study.eval_data or arm.data,)
    if self.study.probes or self.study.layers:
      words = [
        "tpu_scripts/evaluate.py",
        f"--init_checkpoint={run_dir}",
        *(f"--eval_input_file={kind.name}={self._records_dir(kind)}/eval-*" for kind in kinds),
        f"--eval_batch_size={flag_values(self.train_flags).get('eval_batch_size', '64')}",
        *(["--layer_similarity"] if self.study.layers else []),
        f"--output_dir={self.probe_dir(arm, seed)}",
        *self.device_flags,
      ]
      yield Command(f"probe/{place}", tuple(words), os.path.join(self.probe_dir(arm, seed), "eval.json"))

  def _train_words(
    self, arm: Arm, flags: Sequence[str], output_dir: str, *, evaluate: bool = True
  ) -> tuple[str, ...]:
    held_out = self._records_dir(self.study.eval_data or arm.data)
    return (
      "tpu_scripts/run_pretrain.py",
      f"--input_file={self._records_dir(arm.data)}/train-*",
      *([f"--eval_input_file={held_out}/eval-*"] if evaluate else []),
      f"--output_dir={output_dir}",
      *last_of_each(["--select_best=last", *flags]),  # The held-out set compares arms, so it selects in none.
      *self.device_flags,
    )

  def _time_flags(self, arm: Arm, other_run: str, timed_run: str) -> list[str]:
    """The other arm's hours, and as many updates as fit into those of its updates.

    The rate decays over that number. Where evaluation or compilation takes this arm longer, its end is cut off.
    """
    hours, rate = results.training_hours(other_run), results.examples_per_second(timed_run)
    if hours is None or rate is None:
      raise UserError(
        f"{arm.name} takes the time of another arm, whose run must tell it. Received: no report of updates there. Let "
        "it report at least once, with a smaller --iterations_per_loop in --train_flags."
      )
    updates, everything = hours
    batch = int(flag_values(self.training_flags(arm)).get("train_batch_size", 4096))
    return [
      f"--num_train_steps={max(1, int(updates * 3600 * rate / batch))}",
      f"--max_train_hours={everything:.6f}",
    ]

  def _task_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    for name, task in results.TASKS.items():
      folder = os.path.join(self.data_dir, name)
      if files.isdir(folder):
        directory = os.path.join(self.tasks_dir(arm, seed), name)
        words = (
          f"tpu_scripts/{task.script}",
          f"--flagfile=recipes/{task.recipe}.flags",
          *(f"--{flag}={os.path.join(folder, file) if file else folder}" for flag, file in task.data.items()),
          f"--init_checkpoint={self.run_dir(arm, seed)}",
          f"--output_dir={directory}",
          "--noexport",
          *self.task_flags,
          *self.device_flags,
        )
        result = os.path.join(directory, "results.json")
        yield Command(f"tasks/{arm.name}/seed-{seed}/{name}", words, result)
