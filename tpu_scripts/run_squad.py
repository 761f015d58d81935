"""Fine-tunes ALBERT on SQuAD 1.1 or 2.0 with Keras' `model.fit`, and answers questions.

Example:
  python tpu_scripts/run_squad.py --flagfile=recipes/squad2_base_v2.flags --train_file=train-v2.0.json \
    --predict_file=dev-v2.0.json --init_checkpoint=RUN --output_dir=squad2
  python tpu_scripts/run_squad.py --do_predict --predict_file=questions.json --init_checkpoint=squad2 \
    --output_dir=answers
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

from absl import app, flags
import device_flags
import finetuning_flags

from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.startup import load_tensorflow

if TYPE_CHECKING:
  from albert_tf.finetuning.squad.build import BuiltTask
  from albert_tf.finetuning.task_spec import TaskSpec
  from albert_tf.tokenization import AlbertTokenizer

flags.adopt_module_key_flags(finetuning_flags)  # --help shows them too.
_VERSION = flags.DEFINE_enum(
  "version", None, ["1.1", "2.0"], "Of SQuAD. Default, without --do_train: the fine-tuned run's."
)
_TRAIN_FILE = flags.DEFINE_string("train_file", "", "Questions with answers to train on, SQuAD's JSON.")
_PREDICT_FILE = flags.DEFINE_string(
  "predict_file", "", "Questions to answer; scored if the file has the answers."
)

# Sizes, in pieces. Default without --do_train: the fine-tuned run's.
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", None, "Of a window with its question (384).")
_MAX_QUERY_LENGTH = flags.DEFINE_integer("max_query_length", None, "Longer questions are cut (64).")
_DOC_STRIDE = flags.DEFINE_integer("doc_stride", None, "From one window's beginning to the next (128).")
_MAX_ANSWER_LENGTH = flags.DEFINE_integer("max_answer_length", None, "Longer answers are not given (30).")
_N_BEST_SIZE = flags.DEFINE_integer("n_best_size", 20, "Answers kept for each question.")
_START_N_TOP = flags.DEFINE_integer("start_n_top", 5, "2.0: starts followed in each window.")
_END_N_TOP = flags.DEFINE_integer("end_n_top", 5, "2.0: ends kept for each start.")
_KEEP_EMPTY_WINDOWS = flags.DEFINE_bool(
  "keep_empty_windows", True, "Train on windows without the answer, at [CLS], as the original does."
)

# What chooses the checkpoint and 2.0's threshold.
_SELECTION_SPLIT = flags.DEFINE_enum(
  "selection_split",
  "train",
  ["train", "predict"],
  "Questions that choose: held out of --train_file, or --predict_file itself (optimistic scores).",
)
flags.DEFINE_alias("threshold_split", "selection_split")
_HELD_OUT_FRACTION = flags.DEFINE_float(
  "held_out_fraction", 0.05, "Of the training questions, in whole articles."
)
_SPLIT_SEED = flags.DEFINE_integer("split_seed", 12345, "Decides which articles are held out.")
_THRESHOLD = flags.DEFINE_float(
  "null_score_diff_threshold",
  None,
  "2.0: no answer where the null score is at least this. Default: searched, or the fine-tuned run's.",
)
_NUM_WORKERS = flags.DEFINE_integer(
  "num_workers", 0, "Processes that convert questions; 0: several where there are many.", lower_bound=0
)

_LISTED = 5  # Ids in a message.


def _trained_spec() -> "TaskSpec | None":
  """Of the fine-tuned run whose weights are used without training."""
  spec = finetuning_flags.trained_spec()
  if spec and (spec.kind != "question_answering" or _VERSION.value not in (None, spec.squad_version)):
    folder = flags.FLAGS.init_checkpoint or finetuning_flags.output_dir()
    raise UserError(
      "The fine-tuned run must be of the version asked for. Received: "
      f"--version={_VERSION.value or ''} and {folder}, a run of {spec.kind} {spec.squad_version}. Name "
      "another --init_checkpoint."
    )
  return spec


def _make_task(tokenizer: "AlbertTokenizer", trained: "TaskSpec | None") -> "BuiltTask":
  from albert_tf.finetuning.squad.build import SquadFiles, build_task
  from albert_tf.finetuning.squad.settings import SquadSettings

  version = _VERSION.value or (trained.squad_version if trained else None)
  if version is None:
    raise UserError("SQuAD has two versions. Received: no --version. Use --version=1.1 or --version=2.0.")
  if not flags.FLAGS.do_train and not _PREDICT_FILE.value:
    raise UserError("Without --do_train there must be questions to answer. Received: no --predict_file.")
  sizes: dict[str, Any] = {
    name: value if value is not None else getattr(trained, name)
    for name in ("max_seq_length", "max_query_length", "doc_stride", "max_answer_length")
    if (value := flags.FLAGS[name].value) is not None or trained
  }
  source = SquadFiles(
    version=version,
    train_file=_TRAIN_FILE.value if flags.FLAGS.do_train else "",
    predict_file=_PREDICT_FILE.value,
    selection_split=_SELECTION_SPLIT.value,
    held_out_fraction=_HELD_OUT_FRACTION.value,
    split_seed=_SPLIT_SEED.value,
    threshold=_THRESHOLD.value,
  )
  settings = SquadSettings(
    **sizes,
    n_best_size=_N_BEST_SIZE.value,
    start_n_top=_START_N_TOP.value,
    end_n_top=_END_N_TOP.value,
    keep_empty_windows=_KEEP_EMPTY_WINDOWS.value,
  )
  return build_task(
    source,
    settings=settings,
    tokenizer=tokenizer,
    trained_threshold=trained.null_score_diff_threshold if trained else None,
    num_workers=_NUM_WORKERS.value,
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


def main(argv: Sequence[str]) -> None:
  finetuning_flags.refuse_arguments(argv)
  flags_text = flags.FLAGS.flags_into_string()  # TensorFlow adds flags that only it knows.
  load_tensorflow(device_flags.tpu())
  finetuning_flags.quiet_logging()
  settings = finetuning_flags.settings()
  if settings.do_train and not _TRAIN_FILE.value:
    raise UserError("--do_train needs questions with answers. Received: no --train_file.")

  trained = _trained_spec()
  start = finetuning_flags.read_start()
  built = _make_task(start.tokenizer, trained)
  _print_questions(built.notes["questions"])
  # One file serves both: with answers it is evaluated, without it is predicted. Either writes the answers.
  unlabelled = built.task.test_features() is not None
  settings = dataclasses.replace(settings, do_eval=settings.do_train or not unlabelled, do_predict=unlabelled)
  finetuning_flags.fine_tune(
    built.task,
    settings,
    start=start,
    flags_text=flags_text,
    model="question_answering",
    notes=built.notes,
  )


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
