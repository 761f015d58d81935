"""The one table of task kinds against what it names."""

import pytest

from albert_tf.configs.task import TASK_KINDS, TaskSpec
from albert_tf.models.task_model import TaskModel
from albert_tf.models.tasks import AlbertQuestionAnswering, model_class


@pytest.mark.parametrize("kind", TASK_KINDS)
def test_every_kind_has_a_model(kind):
  more = {"squad_version": "2.0"} if kind == "question_answering" else {}
  more |= {"label_names": ("a", "b")} if kind in ("classification", "token_classification") else {}
  assert issubclass(model_class(TaskSpec(kind=kind, name="t", **more)), TaskModel)


def test_a_specification_knows_its_model_and_comes_back_as_it_was(tmp_path):
  squad = TaskSpec(kind="question_answering", name="squad", squad_version="1.1")
  assert model_class(squad) is AlbertQuestionAnswering
  assert squad.export_kind == "question_answering"
  table = TaskSpec(kind="regression", name="custom")
  table.save(str(tmp_path))
  assert TaskSpec.load(str(tmp_path)) == table


def test_what_evaluation_found_out_leaves_the_specification_as_it_is():
  spec = TaskSpec(kind="question_answering", name="squad", squad_version="2.0")
  assert spec.settled({"f1": 50.0, "null_score_diff_threshold": -1.5}).null_score_diff_threshold == -1.5
  assert spec.null_score_diff_threshold == 0.0
  assert spec.settled({"f1": 1.0}) == spec
