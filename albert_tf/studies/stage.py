"""One command of a study, and the kinds there are."""

import dataclasses

# Kinds of stages.
TEXT, VOCABULARY, RECORDS = "text", "vocabulary", "records"
SPEED, TPU_STEP, PRETRAINING, PROBE, TASKS = "speed", "tpu step", "pretraining", "probe", "tasks"
SIDE_BY_SIDE = (PRETRAINING, PROBE, TASKS)  # Several of them may run at a time.
# What the commands leave; they do not import one another.
METRICS_FILE, EVAL_FILE, TASKS_FILE = "metrics.jsonl", "eval.json", "tasks.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
  """One command of a study.

  Attributes:
    kind: what it does; stages of a kind take time in proportion to their cost.
    name: unique in the study.
    command: a script of this project and its flags; empty while an earlier stage must say something for it.
    produces: the file that it leaves when it has succeeded.
    cost: beside the others of its kind.
    after: the stage whose result it takes, beside those of text, records and speed; empty for none.
  """

  kind: str
  name: str
  command: tuple[str, ...]
  produces: str
  cost: float = 1.0
  after: str = ""
