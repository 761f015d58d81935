"""Prints the most likely words for each [MASK] of a sentence, through an exported SavedModel.

Example:
  python tpu_scripts/fill_mask.py --saved_model RUN/saved_model --text "The sky is [MASK]."
"""

import dataclasses

from absl import flags

from albert_tf import commands
from albert_tf.settings import Settings, setting
from albert_tf.startup import load_tensorflow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """What is asked of which model."""

  saved_model: str = setting(help="A SavedModel, or a folder of versions of which the highest is taken.")
  top_k: int = setting(5, help="How many words to print for each [MASK].", minimum=1)


commands.define_flags(Command)
_TEXTS = flags.DEFINE_multi_string(
  "text", None, "A text with [MASK] in it; may be given again.", required=True
)


def main() -> None:
  command = commands.from_flags(Command)
  load_tensorflow()
  from albert_tf.serving.fill_mask import FillMask

  fill_mask = FillMask(command.saved_model)
  for text in _TEXTS.value:
    print(text)
    for number, candidates in enumerate(fill_mask(text, top_k=command.top_k), 1):
      words = "  ".join(f"{candidate.word} {candidate.probability:.3f}" for candidate in candidates)
      print(f"  [MASK] {number}: {words}")


if __name__ == "__main__":
  commands.run(main)
