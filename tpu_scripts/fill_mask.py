"""Prints the most likely words for each [MASK] of a sentence, through an exported SavedModel.

Example:
  python tpu_scripts/fill_mask.py --saved_model RUN/saved_model --text "The sky is [MASK]."
"""

from albert_tf.cli import commands
from albert_tf.settings import Settings, setting

_PRINTED_WORDS = 5  # For each [MASK].


class Command(Settings):
  """The model and the answers to print."""

  saved_model: str = setting(help="A SavedModel, or a folder of versions (the highest is taken).")
  text: tuple[str, ...] = setting(help="A text that contains [MASK]", repeated=True)
  num_hidden_layers: int | None = setting(
    None, "Number of layers, one of the exported --depths. Default: the greatest.", minimum=1
  )


commands.define_flags(Command)


def main() -> None:
  command = commands.from_flags(Command)
  commands.load_tensorflow()
  import numpy as np

  from albert_tf.serving.loaded_model import open_version

  loaded = open_version(command.saved_model)
  path = loaded.directory
  depth = command.num_hidden_layers
  signature = "serving_default" if depth is None else f"depth_{depth}"
  if signature not in loaded.signatures:
    raise commands.UserError(
      f"num_hidden_layers must be a depth of the export. Received: {depth}, and {path} with "
      f"{', '.join(sorted(loaded.signatures))}. Export it with --depths={depth}."
    )
  names = sorted(loaded.signatures[signature].outputs)
  if "words" not in names:
    raise commands.UserError(
      f"A fill_mask export is needed. Received: {path}, which gives {names}. "
      "Export with --model fill_mask."
    )

  outputs = loaded.run(signature, {"text": np.array(command.text, object)})
  num_masks = outputs["num_masks"]  # [B]
  words = outputs["words"]  # [B, M, K], the most likely first.
  probabilities = outputs["probabilities"]  # [B, M, K]
  for row, text in enumerate(command.text):
    print(text)
    for mask in range(num_masks[row]):
      best = zip(words[row, mask], probabilities[row, mask], strict=True)
      candidates = [f"{word.decode()} {probability:.3f}" for word, probability in best]
      print(f"  [MASK] {mask + 1}: {'  '.join(candidates[:_PRINTED_WORDS])}")
    # A text without a mask, or longer than the model reads, has fewer answers than a person expects.
    if num_masks[row] < max(1, text.count("[MASK]")):
      print(f"  {num_masks[row]} [MASK] within the length that the model knows")


if __name__ == "__main__":
  commands.run(main)
