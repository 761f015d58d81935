"""Files of training, evaluation and test data in a folder, and examples held out where there is no file for it."""

from collections.abc import Mapping, Sequence
import os
from typing import TypeVar

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.errors import UserError

# Split → what its file is called before the suffix.
STEMS: Mapping[str, tuple[str, ...]] = {
  "train": ("train",),
  "eval": ("dev", "valid", "validation", "eval"),
  "test": ("test",),
}
_Example = TypeVar("_Example")


def find_split_files(
  data_dir: str, suffixes: Sequence[str], *, needed: Sequence[str], **named: str
) -> dict[str, str]:
  """The file of each split.

  Args:
    data_dir: holds `train.SUFFIX`, `dev.SUFFIX` (or valid, validation, eval) and `test.SUFFIX`; may be empty.
    suffixes: which suffixes count.
    needed: the splits that must be there; training examples may stand in for "eval" (see `hold_out`).
    **named: split → file that was named by the user, instead of the folder's; empty: none.

  Returns:
    Split → path; those without a file are absent.

  Raises:
    UserError: there is no such folder, a split that is needed has no file, or a split has two.
  """
  found = {split: path for split, path in named.items() if path}
  if data_dir:
    if not files.exists(data_dir):
      raise UserError(f"data_dir must exist. Received: {data_dir}, which does not. Check the path.")
    for split, stems in STEMS.items():
      names = [stem + suffix for stem in stems for suffix in suffixes]
      there = [name for name in names if files.exists(os.path.join(data_dir, name))]
      if len(there) > 1 and split not in found:
        raise UserError(
          f"data_dir holds one file for each split. Received: {', '.join(there)} in {data_dir}. "
          f"Name the one to take with --{split}_file."
        )
      if there:
        found.setdefault(split, os.path.join(data_dir, there[0]))
  if not found:
    received = f"--data_dir={data_dir}, which holds none" if data_dir else "no --data_dir"
    raise UserError(
      f"There must be a file to read: train, dev or test with {', '.join(suffixes)} in --data_dir, or named with "
      f"--train_file, --eval_file, --test_file. Received: {received}."
    )
  for split in needed:
    if split not in found and not (split == "eval" and "train" in found):
      raise UserError(
        f"What is to be done needs {split} data. Received: files for {', '.join(found)} alone. Name a file with "
        f"--{split}_file, or leave the --do_… flag out."
      )
  return found


def hold_out(
  examples: Sequence[_Example], fraction: float, *, source: str
) -> tuple[list[_Example], list[_Example]]:
  """Training and evaluation examples of one file; always the same ones.

  Raises:
    UserError: one part would be empty.
  """
  count = round(len(examples) * fraction)
  if not 0 < count < len(examples):
    raise UserError(
      f"Some training examples are held out for evaluation. Received: {len(examples)} in {source} and "
      f"--eval_fraction={fraction}. Name an --eval_file."
    )
  order = np.random.default_rng(0).permutation(len(examples))
  logging.info("%s: %d of %d examples are held out for evaluation", source, count, len(examples))
  return [examples[i] for i in np.sort(order[count:])], [examples[i] for i in np.sort(order[:count])]
