"""Fine-tunes ALBERT on SQuAD 1.1 or 2.0 with Keras' `model.fit`, and answers questions.

Example:
  python tpu_scripts/run_squad.py --flagfile=recipes/squad2.flags --train_file=train-v2.0.json \
    --predict_file=dev-v2.0.json --init_checkpoint=RUN --output_dir=squad2
  python tpu_scripts/run_squad.py --do_predict --predict_file=questions.json --init_checkpoint=squad2 \
    --output_dir=answers
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

from absl import app, flags
import finetuning_flags
import finetuning_inputs
from flag_settings import from_flags, parse_flags

from albert_tf.errors import UserError, exit_on_user_error

if TYPE_CHECKING:  # At run time these would import TensorFlow before the flags are read.
  from albert_tf.configs.task import TaskSpec
  from albert_tf.finetuning.initialize import Start
  from albert_tf.finetuning.settings import FineTuneSettings
  from albert_tf.finetuning.tasks.squad.build import BuiltTask
  from albert_tf.tokenization import AlbertTokenizer

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_VERSION = flags.DEFINE_enum(
  "version", None, ["1.1", "2.0"], "Of SQuAD. Default, without --do_train: the fine-tuned run's."
)
_TRAIN_FILE = flags.DEFINE_string("train_file", "", "Questions with answers to train on, SQuAD's JSON.")
_PREDICT_FILE = flags.DEFINE_string(
  "predict_file", "", "Questions to answer; scored if the file has the answers."
)

# Sizes, in tokens. Default without --do_train: the fine-tuned run's.
flags.DEFINE_integer("max_seq_length", None, "Of a window with its question (384).")
flags.DEFINE_integer("max_query_length", None, "Longer questions are cut (64).")
flags.DEFINE_integer("doc_stride", None, "From one window's beginning to the next (128).")
flags.DEFINE_integer("max_answer_length", None, "Longer answers are not given (30).")
flags.DEFINE_integer("n_best_size", 20, "Answers kept for each question.")
flags.DEFINE_integer("start_n_top", 5, "2.0: starts followed in each window.")
flags.DEFINE_integer("end_n_top", 5, "2.0: ends kept for each start.")
flags.DEFINE_bool(
  "keep_empty_windows", True, "Train on windows without the answer, at [CLS], as the original does."
)

# What chooses the checkpoint and 2.0's threshold.
flags.DEFINE_enum(
  "selection_split",
  "train",
  ["train", "predict"],
  "Questions that choose: held out of --train_file, or --predict_file itself (optimistic scores).",
)
flags.DEFINE_alias("threshold_split", "selection_split")
flags.DEFINE_float("held_out_fraction", 0.05, "Of the training questions, in whole articles.")
flags.DEFINE_integer("split_seed", 12345, "Decides which articles are held out.")
flags.DEFINE_float(
  "null_score_diff_threshold",
  None,
  "2.0: no answer where the null score is at least this. Default: searched, or the fine-tuned run's.",
)
flags.DEFINE_integer(
  "num_workers", 0, "Processes that convert questions; 0: several where there are many.", lower_bound=0
)

_SIZES = ("max_seq_length", "max_query_length", "doc_stride", "max_answer_length")
_LISTED = 5  # Ids in a message.


def _trained_spec() -> "TaskSpec | None":
  """Of the fine-tuned run whose weights are used without training."""
  spec = finetuning_inputs.trained_spec()
  if spec and (spec.kind != "question_answering" or _VERSION.value not in (None, spec.squad_version)):
    folder = flags.FLAGS.init_checkpoint or flags.FLAGS.output_dir
    raise UserError(
      "The fine-tuned run must be of the version asked for. Received: "
      f"--version={_VERSION.value or ''} and {folder}, a run of {spec.kind} {spec.squad_version}. Name "
      "another --init_checkpoint."
    )
  return spec


def _make_task(tokenizer: "AlbertTokenizer", trained: "TaskSpec | None") -> "BuiltTask":
  from albert_tf.finetuning.tasks.squad.build import SquadFiles, build_task
  from albert_tf.finetuning.tasks.squad.windows import SquadSettings

  version = _VERSION.value or (trained.squad_version if trained else None)
  if version is None:
    raise UserError("SQuAD has two versions. Received: no --version. Use --version=1.1 or --version=2.0.")
  if not flags.FLAGS.do_train and not _PREDICT_FILE.value:
    raise UserError("Without --do_train there must be questions to answer. Received: no --predict_file.")
  source = from_flags(
    SquadFiles,
    version=version,
    train_file=_TRAIN_FILE.value if flags.FLAGS.do_train else "",
    threshold=flags.FLAGS.null_score_diff_threshold,
    of_members=bool(flags.FLAGS.ensemble_of),
  )
  before = trained or SquadSettings()
  sizes = {name: getattr(before, name) for name in _SIZES if flags.FLAGS[name].value is None}
  return build_task(
    source,
    settings=from_flags(SquadSettings, **sizes),
    tokenizer=tokenizer,
    trained_threshold=trained.null_score_diff_threshold if trained else None,
    num_workers=flags.FLAGS.num_workers,
  )


def _print_questions(questions: Mapping[str, Mapping[str, Any]]) -> None:
  """What was read, and what is not as it should be."""
  for split, found in questions.items():
    print(
      f"{split}: {found['total']} questions, {found['paragraphs']} paragraphs, {found['windows']} windows"
    )
    for name, meaning in (
      (
        "answers_moved",
        "answers are elsewhere in their paragraph than the file says; the nearest place is taken",
      ),
      ("answers_missing", "answers are not in their paragraph; their questions are not trained on"),
      ("empty_questions", "questions have no text"),
      ("empty_contexts", "questions have a paragraph without text"),
    ):
      ids = found.get(name, [])
      if ids:
        more = ", … (all in results.json)" if len(ids) > _LISTED else ""
        print(f"  {len(ids)} {meaning}: {', '.join(ids[:_LISTED])}{more}")


def _prepare(start: "Start", settings: "FineTuneSettings") -> finetuning_flags.Prepared:
  from albert_tf.finetuning.tasks.squad.build import later_notes

  if settings.do_train and not _TRAIN_FILE.value:
    raise UserError("--do_train needs questions with answers. Received: no --train_file.")
  built = _make_task(start.tokenizer, _trained_spec())
  _print_questions(built.notes["questions"])
  # One file serves both: with answers it is evaluated, without it is predicted. Either writes the answers.
  unlabelled = built.task.test_features() is not None
  settings = dataclasses.replace(settings, do_eval=settings.do_train or not unlabelled, do_predict=unlabelled)
  notes = built.notes
  if not settings.do_train and finetuning_inputs.has_run():
    notes = later_notes(notes, evaluates=settings.do_eval)
  return finetuning_flags.Prepared(built.task, settings, notes)


def main(argv: Sequence[str]) -> None:
  finetuning_flags.run(argv, _prepare)


if __name__ == "__main__":
  app.run(exit_on_user_error(main), flags_parser=parse_flags)
