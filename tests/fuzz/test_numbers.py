"""Numbers that are not finite, or too large for 32 bits: in settings, and as labels of tables."""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any

from fuzz import readers
from fuzz.fuzzing import fuzz
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from support.tiny_finetuning import tiny_task

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns, read_table
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.labelled import TextExample
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.finetuning.tasks.tables import table_examples
from albert_tf.optim.config import OptimizerConfig
from albert_tf.pretraining.settings import StepConfig
from albert_tf.records import PretrainingSpec
from albert_tf.runs.settings import DistributionConfig
from albert_tf.serving.settings import ExportSettings, LiteSettings
from albert_tf.settings import Settings, fields_of
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.vocabulary import VocabularySpec

GOOD: list[Settings] = [
  AlbertConfig.from_name("tiny"), readers.CLASSES, readers.SPANS, readers.MANIFEST, OptimizerConfig(),
  FineTuneSettings(), SquadSettings(), ExportSettings(), LiteSettings(), DistributionConfig(), StepConfig(),
  RecordSettings(), VocabularySpec(),
]  # fmt: skip
FLOAT32 = float(np.finfo(np.float32).max)
ODD_FLOATS = [math.nan, math.inf, -math.inf, 1e39, -1e39, FLOAT32, 2 * FLOAT32, 1e308, -0.0]
ODD_INTS = [2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 10**400, -(2**40), -(10**400)]
NUMBERS = st.sampled_from([*ODD_FLOATS, *ODD_INTS]) | st.floats() | st.integers()


def numbers_of(value: Any) -> list[float]:
  items = value if isinstance(value, (list, tuple)) else [value]
  return [item for item in items if isinstance(item, (int, float))]


@fuzz(good=st.sampled_from(GOOD), number=NUMBERS, data=st.data())
def test_settings(good: Settings, number: float, data: st.DataObject) -> None:
  """A number is refused, or finite, of 32 bits where no bound says more, and the same after JSON."""
  numbers = {int, float}
  fields = [each for each in fields_of(type(good)) if numbers & {each.type, *_items(each.type)}]
  field = data.draw(st.sampled_from(fields))
  value = (number,) if _items(field.type) else number
  try:
    changed = dataclasses.replace(good, **{field.name: value})
  except UserError:
    return
  largest = max(field.metadata.get("maximum") or FLOAT32, FLOAT32)
  assert all(abs(item) <= largest for item in numbers_of(getattr(changed, field.name)))
  text = json.dumps(changed.to_dict(), allow_nan=False)
  assert type(changed).from_dict(json.loads(text), source="text").to_dict() == json.loads(text)


def _items(kind: Any) -> tuple[Any, ...]:
  """The types of a tuple's items."""
  return getattr(kind, "__args__", ())


@pytest.mark.parametrize(
  ("kind", "too_large"),
  [
    (RecordSettings, {"max_seq_length": 1 << 40}),
    (RecordSettings, {"max_seq_length": 1 << 31, "max_predictions_per_seq": 1 << 31}),
    (PretrainingSpec, {"max_seq_length": 1 << 40, "max_predictions_per_seq": 20}),
    (SquadSettings, {"max_seq_length": 1 << 30}),
    (FineTuneSettings, {"train_batch_size": 1 << 30}),
    (StepConfig, {"global_batch_size": 1 << 30}),
    (LiteSettings, {"batch_size": 1 << 30}),
    (ExportSettings, {"n_best": 1 << 30}),
    (OptimizerConfig, {"learning_rate": math.inf}),
    (FineTuneSettings, {"learning_rate": 1e39}),
    (FineTuneSettings, {"num_train_epochs": 10**400}),
    (functools.partial(dataclasses.replace, readers.MANIFEST), {"random_seed": -(10**400)}),
  ],
)
def test_numbers_that_would_fill_the_memory_or_overflow(kind: Any, too_large: Any) -> None:
  with pytest.raises(UserError):
    kind(**too_large)


ODD_LABELS = "inf -Infinity nan 1e39 -1e39 1e400 1_0 ٣ 0x10 1e38".split()
LABELS = st.sampled_from([*ODD_LABELS, "9" * 400, " 2 ", ""])
CELLS = LABELS | st.floats().map(str) | st.text(max_size=4).filter(lambda text: text.isprintable())


@hypothesis.example(cells=["1", "inf"], suffix=".tsv")
@hypothesis.example(cells=["1", "1e400"], suffix=".jsonl")
@hypothesis.example(cells=["1", "1e39"], suffix=".tsv")
@fuzz(cells=st.lists(CELLS, min_size=1, max_size=4), suffix=st.sampled_from([".tsv", ".jsonl"]))
def test_labels(tmp_path: pathlib.Path, cells: list[str], suffix: str) -> None:
  """A label of a table is finite in 32 bits, or its line is named; JSON's numbers are as texts are."""
  path = tmp_path / f"labels{suffix}"
  lines = ["text\tlabel", *(f"a text\t{cell}" for cell in cells)]
  if suffix == ".jsonl":
    lines = [json.dumps({"text": "a text", "label": _json_number(cell)}) for cell in cells]
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")
  columns = TableColumns()
  try:
    examples = table_examples(read_table(str(path)), columns, labelled=True, kind="regression")
  except UserError as error:
    if f"{path}:" not in str(error):  # The line follows.
      raise AssertionError("no line is named") from error
    return
  assert all(np.isfinite(np.float32(float(example.label or "nan"))) for example in examples)


def _json_number(cell: str) -> Any:
  """The cell as a number, such as Infinity, where it is one."""
  try:
    return float(cell)
  except ValueError:
    return cell


def test_a_value_that_is_not_finite_is_no_label() -> None:
  """Of GLUE's STS-B, whose files have no columns of a user's."""
  task = tiny_task({"eval": [TextExample("row 7", "a", "b", "1e39")]}, pair=True, regression=True)
  with pytest.raises(UserError, match="row 7"):
    task.gold("eval")
