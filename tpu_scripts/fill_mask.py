"""Prints the most likely words for each [MASK] of a sentence, through an exported SavedModel.

Example:
  python tpu_scripts/fill_mask.py --saved_model RUN/saved_model --text "The sky is [MASK]."
"""

from absl import flags

from albert_tf.cli import commands
from albert_tf.cli.startup import load_tensorflow
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The model and the answers to print."""

  saved_model: str = setting(help="A SavedModel, or a folder of versions (the highest is taken).")
  top_k: int = setting(
    5, "Words to print for each [MASK], at most the export's --top_k.", minimum=1
  )
  num_hidden_layers: int | None = setting(
    None, "Number of layers, one of the exported --depths. Default: the greatest.", minimum=1
  )


commands.define_flags(Command)
_TEXTS = flags.DEFINE_multi_string("text", None, "A text that contains [MASK]", required=True)


def main() -> None:
  command = commands.from_flags(Command)
  load_tensorflow()
  import tensorflow as tf
  import tensorflow_text  # noqa: F401  Registers the ops of the exported tokenizer.

  from albert_tf.serving.check import find_version

  path = find_version(command.saved_model)
  loaded = tf.saved_model.load(path)  # Holds the variables: a signature alone does not.
  name = f"depth_{command.num_hidden_layers}" if command.num_hidden_layers else "serving_default"
  if name not in loaded.signatures:
    raise commands.UserError(
      f"num_hidden_layers must be a depth of the export. Received: {command.num_hidden_layers}, and {path} with "
      f"{', '.join(sorted(loaded.signatures))}. Export it with --depths={command.num_hidden_layers}."
    )
  fill_mask = loaded.signatures[name]
  if "words" not in fill_mask.structured_outputs:
    raise commands.UserError(
      f"A fill_mask export is needed. Received: {path}, which gives {sorted(fill_mask.structured_outputs)}. "
      "Export with --model fill_mask."
    )
  answers = {
    name: tensor.numpy() for name, tensor in fill_mask(text=tf.constant(_TEXTS.value)).items()
  }
  for text, count, words, chances in zip(
    _TEXTS.value, answers["num_masks"], answers["words"], answers["probabilities"], strict=True
  ):
    print(text)
    for number in range(count):
      best = zip(words[number][: command.top_k], chances[number], strict=False)
      print(
        f"  [MASK] {number + 1}: "
        + "  ".join(f"{word.decode()} {chance:.3f}" for word, chance in best)
      )
    if count < max(1, text.count("[MASK]")):
      print(f"  {count} [MASK] within the length that the model knows")


if __name__ == "__main__":
  commands.run(main)
