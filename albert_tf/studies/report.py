"""Everything that a study directory shows: tables and picture, of what is finished."""

from collections.abc import Sequence
import datetime
import os

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.studies.driver import STUDY_FILE, is_done
from albert_tf.studies.plan import Plan
from albert_tf.studies.results import Results, collect, of_runs
from albert_tf.studies.stage import METRICS_FILE
from albert_tf.studies.study import Study, flag_values
from albert_tf.studies.tables import write_tables


def write_report(plan: Plan) -> str:
  """Writes tables and plot of what is finished so far; returns the table as Markdown."""
  results = collect(plan, [stage for stage in plan.stages() if is_done(plan, stage)])
  scale = {"laptop": "a laptop", "paper": "the paper"}[plan.scale]
  about = f"{plan.study.paper.capitalize()} of the ALBERT paper, at the scale of {scale}"
  lines = [plan.study.question, "", f"{about}; {datetime.date.today():%d %B %Y}.", *_settings(plan)]
  return _write(plan.study, plan.output_dir, results, lines, plan.identity())


def write_curves(study: Study, run_dirs: Sequence[str], output_dir: str) -> str:
  """The same of any runs, wherever they come from.

  Raises:
    UserError: a directory holds no reports, or the output directory another study.
  """
  if not run_dirs:
    raise UserError(
      "Learning curves are those of runs. Received: no --runs. Name run directories with commas: --runs=RUN1,RUN2."
    )
  for run_dir in run_dirs:
    if not files.exists(os.path.join(run_dir, METRICS_FILE)):
      raise UserError(
        f"A run directory holds {METRICS_FILE}. Received: {run_dir}, which does not. Name what run_pretrain.py has "
        "written as --output_dir."
      )
  if files.exists(os.path.join(output_dir, STUDY_FILE)):
    raise UserError(
      f"Learning curves have a directory of their own. Received: {output_dir}, which holds another study, whose table "
      "they would replace. Choose another --output_dir."
    )
  lines = [f"{len(run_dirs)} runs; {datetime.date.today():%d %B %Y}."]
  return _write(study, output_dir, of_runs(run_dirs), lines, {"study": study.name, "runs": list(run_dirs)})


def _settings(plan: Plan) -> list[str]:
  """What all arms share, in a line or two."""
  values = {**flag_values(plan.data_flags), **flag_values(plan.train_flags)}
  names = ("max_seq_length", "hidden_size", "num_hidden_layers", "train_batch_size", "num_train_steps")
  shared = [f"{name.replace('_', ' ')} {values[name]}" for name in names if name in values]
  shared += ["masked LM alone"] if values.get("sentence_loss") == "off" else []
  megabytes = flag_values(plan.text_flags).get("max_megabytes", "0")
  text = plan.input or f"{megabytes} MB of installed documentation"
  seeds = f"{len(plan.seeds)} seeds, mean ± standard deviation" if len(plan.seeds) > 1 else "one seed"
  return [f"Text: {text}; {', '.join(shared)}; {seeds}. Held-out documents are the same for all arms."]


def _write(study: Study, directory: str, results: Results, lines: Sequence[str], about: object) -> str:
  files.makedirs(directory)
  picture = f"{study.name}.png"
  from albert_tf.studies.plots import draw_study  # Loads Matplotlib.

  if draw_study(study, results, os.path.join(directory, picture)):
    lines = [*lines, "", f"![{study.title}]({picture})"]
  return write_tables(directory, study.title, study.columns, results, lines=lines, about=about)
