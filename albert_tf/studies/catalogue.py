"""Every study, by name: the tables and figures of the ALBERT paper, in its order."""

from collections.abc import Mapping

from albert_tf.studies.architecture import (
  DEPTH,
  EMBEDDING,
  LAYER_SIMILARITY,
  SHARING,
  SIZES,
  WIDE_DEPTH,
  WIDTH,
)
from albert_tf.studies.study import Study, check_name
from albert_tf.studies.training import DROPOUT, EQUAL_TIME, LEARNING_CURVES, MORE_DATA, SENTENCE_LOSS

# What all arms of a study share is in recipes/studies/STUDY/SCALE.flags; a study says what sets its arms apart.
STUDIES: Mapping[str, Study] = {
  study.name: study
  for study in (
    SIZES,
    EMBEDDING,
    SHARING,
    SENTENCE_LOSS,
    EQUAL_TIME,
    MORE_DATA,
    DROPOUT,
    DEPTH,
    WIDTH,
    WIDE_DEPTH,
    LAYER_SIMILARITY,
    LEARNING_CURVES,
  )
}


def find_study(name: str) -> Study:
  """The study of this name; an unknown one is a `UserError` that lists them."""
  check_name(name, list(STUDIES), what="study")
  return STUDIES[name]
