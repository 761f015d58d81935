"""A study at a scale as commands in order: what each reads, and what it leaves when it has succeeded."""

from collections.abc import Iterator
import dataclasses
import os
from typing import Any, NamedTuple

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.studies import results
from albert_tf.studies.study import Arm, Study, flag_values, last_of_each


class Command(NamedTuple):
  """One command of a study.

  Attributes:
    name: unique in the study.
    words: a script of this project and its flags.
    result: the file that it leaves when it has succeeded; of a pretraining run the directory.
  """

  name: str
  words: list[str]
  result: str

  def is_done(self) -> bool:
    """Whether its result is there; a pretraining run is asked how far it is."""
    if not self.words[0].endswith("run_pretrain.py"):
      return files.exists(self.result)
    given = flag_values(self.words)
    last = {report["split"]: report["step"] for report in results.read_reports(self.result)}
    splits = ("train", "eval") if "eval_input_file" in given else ("train",)
    return all(last.get(split, 0) >= int(given.get("num_train_steps", 125_000)) for split in splits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """Everything that one call of run_study.py is to do.

  The flags are lists for the commands: `text_flags` for extract_installed_docs.py, and so on; `device_flags`, which
  change no result, for all that compute on devices. The other fields are those of run_study.py's flags.
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

  def seed_dir(self, kind: str, arm: Arm, seed: int) -> str:
    """Where the `runs`, `probes` or `tasks` of an arm and seed lie."""
    return self.path(kind, arm.name, f"seed-{seed}")

  def commands(self) -> Iterator[Command]:
    """All commands, in order; one may read what those before it have left, so each is made when it is its turn.

    Those of one seed come before the next seed's, so that a table is whole early.
    """
    yield from self._data_commands()
    for seed in self.seeds:
      for arm in self.arms:
        yield from self._training_commands(arm, seed)
    for seed in self.seeds if self.data_dir else ():
      for arm in self.arms:
        yield from self._task_commands(arm, seed)

  def _data_commands(self) -> Iterator[Command]:
    text, vocabulary = self.input, self.spm_model_file
    if not text:
      text = self.path("text", "docs-*.txt")
      tool = "tfrecords_tools/extract_installed_docs.py"
      words = [tool, f"--output_dir={self.path('text')}", *self.text_flags]
      yield Command("text", words, self.path("text", "docs-00000-of-00004.txt"))
    if not vocabulary:
      prefix = self.path("vocabulary", "spm")
      vocabulary = f"{prefix}.model"
      tool = "tfrecords_tools/train_vocab.py"
      words = [tool, f"--input={text}", f"--model_prefix={prefix}", *self.vocab_flags]
      yield Command("vocabulary", words, vocabulary)
    wanted = [*(arm.data for arm in self.arms), *self.study.probes, *filter(None, [self.study.eval_data])]
    for kind in dict.fromkeys(wanted):
      directory = self.path("records", kind.name)
      words = [
        "tfrecords_tools/create_pretraining_data.py",
        f"--input={_first_half(text) if kind.half else text}",
        f"--spm_model_file={vocabulary}",
        f"--output_dir={directory}",
        f"--num_workers={os.cpu_count() or 1}",
        *self.data_flags,
        f"--sentence_pair={kind.sentence_pair}",
      ]
      yield Command(f"records/{kind.name}", words, os.path.join(directory, "manifest.json"))

  def _training_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    """The run of an arm, before it the measurement of its speed, and after it what is asked of the trained model."""
    place, run_dir = f"{arm.name}/seed-{seed}", self.seed_dir("runs", arm, seed)
    given = last_of_each([*self.train_flags, *arm.flags[self.scale]])
    held_out = self.study.eval_data or arm.data
    words = [
      "tpu_scripts/run_pretrain.py",
      f"--input_file={self.path('records', arm.data.name)}/train-*",
      "--select_best=last",  # The held-out set compares arms, so it selects in none.
      *given,
      f"--seed={seed}",
      *self.device_flags,
    ]
    evaluated = [f"--eval_input_file={self.path('records', held_out.name)}/eval-*", f"--output_dir={run_dir}"]
    earlier = next((other for other in self.arms if other.name in (arm.after, arm.time_of)), None)
    if earlier and arm.after:
      words.append(f"--init_checkpoint={self.seed_dir('runs', earlier, seed)}")
    if earlier and arm.time_of:
      # How many updates fit into the other arm's hours must be known before the rate can decay over them.
      timed = self.path("speed", place)
      few = ("--num_train_steps=60", "--num_warmup_steps=1", "--iterations_per_loop=20")
      yield Command(f"speed/{place}", [*words, *few, f"--output_dir={timed}"], timed)
      hours = results.training_hours(self.seed_dir("runs", earlier, seed))
      rate = results.examples_per_second(timed)
      if hours is None or rate is None:
        raise UserError(
          f"{arm.name} takes the time of another arm, whose run has no report of updates. Let it report at least once, "
          "with a smaller --iterations_per_loop in --train_flags."
        )
      steps = max(1, int(hours[0] * 3600 * rate / int(flag_values(given).get("train_batch_size", 4096))))
      # Where evaluation or compilation takes this arm longer, its end is cut off.
      words += [f"--num_train_steps={steps}", f"--max_train_hours={hours[1]:.6f}"]
    yield Command(f"pretraining/{place}", [*words, *evaluated], run_dir)
    if self.study.probes or self.study.layers:
      probe_dir = self.seed_dir("probes", arm, seed)
      words = [
        "tpu_scripts/evaluate.py",
        f"--init_checkpoint={run_dir}",
        *(
          f"--eval_input_file={kind.name}={self.path('records', kind.name)}/eval-*"
          for kind in self.study.probes or (held_out,)
        ),
        f"--eval_batch_size={flag_values(self.train_flags).get('eval_batch_size', '64')}",
        *(["--layer_similarity"] if self.study.layers else []),
        f"--output_dir={probe_dir}",
        *self.device_flags,
      ]
      yield Command(f"probe/{place}", words, os.path.join(probe_dir, "eval.json"))

  def _task_commands(self, arm: Arm, seed: int) -> Iterator[Command]:
    for name, task in results.TASKS.items():
      folder = os.path.join(self.data_dir, name)
      if files.isdir(folder):
        directory = os.path.join(self.seed_dir("tasks", arm, seed), name)
        words = [
          f"tpu_scripts/{task.script}",
          f"--flagfile=recipes/{task.recipe}.flags",
          *(f"--{flag}={os.path.join(folder, file) if file else folder}" for flag, file in task.data.items()),
          f"--init_checkpoint={self.seed_dir('runs', arm, seed)}",
          f"--output_dir={directory}",
          "--noexport",
          *self.task_flags,
          *self.device_flags,
        ]
        yield Command(f"tasks/{arm.name}/seed-{seed}/{name}", words, os.path.join(directory, "results.json"))


def _first_half(text: str) -> str:
  """The first half of the text files: a document has the same place, and so the same held-out draw, in the whole."""
  found = files.expand_globs(text)
  if len(found) < 2:
    raise UserError(
      f"More data is all files of the text against the first half of them, so there must be two. Received: "
      f"--input={text}, which is one file. Split it between two documents."
    )
  return ",".join(found[: len(found) // 2])
