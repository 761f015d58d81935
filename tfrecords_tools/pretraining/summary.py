"""What was made, for a person to read."""

from collections.abc import Mapping
from typing import Any

from albert_tf.records import Manifest
from tfrecords_tools.pretraining.statistics import alone_warning, torn_words_warning


def _format_corpus(corpus: Mapping[str, Any]) -> str:
  noted = [
    f"{corpus[name]:,} {what}"
    for name, what in (
      ("empty_files", "empty files"),
      ("bad_text_skipped", "lines or records not UTF-8, dropped"),
      ("bad_text_replaced", "lines or records not UTF-8, repaired"),
      ("long_lines", "overlong lines cut"),
      ("long_documents", "overlong documents cut"),
      ("skipped_records", "records without an article"),
    )
    if corpus[name]
  ]
  formats = ", ".join(f"{count:,} of {kind}" for kind, count in corpus["formats"].items())
  read = (
    f"read   {corpus['bytes_read'] / 1e6:,.1f} MB in {corpus['files']:,} file(s), {formats}: "
    f"{corpus['documents']:,} documents, {corpus['sentences']:,} sentences"
  )
  return "; ".join([read, *noted])


def format_summary(manifest: Manifest) -> str:
  """What the records are, for a person to read."""
  lines = [_format_corpus(manifest.statistics["corpus"])]
  if manifest.settings.get("dedup") == "exact":
    lines.append(f"left out {manifest.statistics['duplicates']:,} documents that are copies of earlier ones")
  for split in ("train", "eval"):
    s = manifest.statistics[split]
    if not s["instances"]:
      continue
    shares = " ".join(f"{n}:{share:.3f}" for n, share in enumerate(s["ngram_shares"], 1) if share is not None)
    lines.append(
      f"{split:5}  {s['instances']:,} instances of {s['documents']:,} documents in "
      f"{len(manifest.files_of(split))} file(s); mean length {s['mean_length']:.1f}; label 1 "
      f"{s['label_1_share']:.3f}; predictions {s['mean_predictions']:.1f}; unknown pieces "
      f"{s['unknown_share'] or 0:.5f}; cut off {s['truncated_share'] or 0:.4f}"
    )
    if s["masked_share"] is not None:
      lines.append(
        f"       masked {s['masked_share']:.3f} kept {s['kept_share']:.3f} random {s['random_share']:.3f}; "
        f"n-grams {shares}"
      )
    lines += filter(None, [alone_warning(s)])
  for name, s in manifest.statistics.get("sources", {}).items():
    train, held_out = s["train"], s["eval"]
    lines.append(
      f"source {name}, weight {s['weight']:g}: {s['train_share'] or 0:.1%} of the tokens of train; "
      f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens, "
      f"{train['instances']:,} instances; eval {held_out['documents']:,} documents, {held_out['instances']:,} instances"
    )
  if manifest.baseline is not None:
    b = manifest.baseline
    held_out = "" if b.eval_share is None else f", {b.eval_share:.4f} of eval"
    lines.append(f"always answering {b.piece!r} is right for {b.train_share:.4f} of train{held_out}")
  lines += filter(None, [torn_words_warning(manifest.statistics["train"].get("torn_share"))])
  return "\n".join(lines)
