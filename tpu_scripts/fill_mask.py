"""Prints the most likely words for each [MASK] of a sentence, through an exported SavedModel.

Example:
  python tpu_scripts/fill_mask.py --saved_model RUN/saved_model --text "The sky is [MASK]."
"""

from collections.abc import Sequence

from absl import app, flags, logging

from albert_tf.errors import exit_on_user_error
from albert_tf.startup import load_tensorflow

_SAVED_MODEL = flags.DEFINE_string(
  "saved_model", None, "A SavedModel, or a folder of versions of which the highest is taken.", required=True
)
_TEXT = flags.DEFINE_multi_string(
  "text", None, "A text with [MASK] in it; may be given more than once.", required=True
)
_TOP_K = flags.DEFINE_integer("top_k", 5, "How many words to print for each [MASK].", lower_bound=1)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}. Put the text in quotes.")
  logging.set_verbosity(logging.WARNING)
  load_tensorflow()
  from albert_tf.serving import FillMask

  fill_mask = FillMask(_SAVED_MODEL.value)
  for text in _TEXT.value:
    print(text)
    for number, candidates in enumerate(fill_mask(text, top_k=_TOP_K.value), 1):
      shown = "  ".join(f"{candidate.word} {candidate.probability:.3f}" for candidate in candidates)
      print(f"  [MASK] {number}: {shown}")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
