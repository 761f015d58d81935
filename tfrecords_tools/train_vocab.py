r"""Trains a SentencePiece unigram vocabulary with ALBERT's special ids.

Ids 0-4 are <pad>, <unk>, [CLS], [SEP], [MASK]; ids 5-12 are ( ) " - . – £ €; learned tokens follow.
The text goes through ALBERT's normalisation first. The same text and flags give the same bytes.

  python tfrecords_tools/train_vocab.py --input 'text/*.txt' --model_prefix vocab/spm --vocab_size 30000
"""

import os
import sys
import time

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting
from tfrecords_tools import vocabulary
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, describe_format


class Command(Settings):
  """Input and output of the command."""

  input: tuple[str, ...] = setting(
    help="Input files, on a disk or gs://: glob patterns with commas, quoted. A million sentences, "
    "drawn from all of them, are used; no flag changes that. They are read whole: for a rehearsal "
    "name fewer."
  )
  model_prefix: str = setting(
    help="Path and name of the output; files of that name are replaced. PREFIX.model is the "
    "vocabulary. PREFIX.json has its case and accents: keep it beside the model. PREFIX.vocab lists "
    "tokens and scores, to look at: nothing reads it. To be rid of a token, remove it from the text "
    "and train again."
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    # Else the files would be hidden ones: vocab/.model.
    if not os.path.basename(self.model_prefix):
      raise UserError(
        f"model_prefix must end with a name. Received: {self.model_prefix!r}. Give the files a "
        f"name, such as --model_prefix={self.model_prefix}spm."
      )


commands.define_flags(Command)
commands.define_flags(vocabulary.VocabularySpec)
commands.define_flags(CorpusOptions)


def main() -> None:
  # The flags, each group as one object.
  command = commands.from_flags(Command)
  spec = commands.from_flags(vocabulary.VocabularySpec)
  options = commands.from_flags(CorpusOptions)
  stats = CorpusStats()
  # Fail before the long work.
  files.makedirs(os.path.dirname(command.model_prefix) or ".")
  paths = files.expand_globs(command.input)
  if options.input_format == "auto":
    print(describe_format(paths[0], options), file=sys.stderr, flush=True)
  start = time.monotonic()
  vocabulary.make(paths, options, spec, model_prefix=command.model_prefix, stats=stats)
  print(
    f"Wrote {command.model_prefix}.model, .vocab, .json in {time.monotonic() - start:.0f} s: "
    f"{spec.vocab_size:,} tokens from {stats.sentences:,} sentences in {stats.files} files; "
    f"files without text: {stats.empty_files}; lines that were not UTF-8: {stats.bad_text_replaced}."
  )


if __name__ == "__main__":
  commands.run(main)
