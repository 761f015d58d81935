"""Makes the recorded files of this folder, small, from the folder ../shared/oracle beside the clone.

Usage: python tests/goldens/record.py ../shared/oracle

README.md here says what was recorded and how; `support/goldens.py` reads what this writes.
"""

import gzip
import json
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2
import tensorflow as tf

OUT = pathlib.Path(__file__).parent
TABLE = "bert/embeddings/word_embeddings"
# Of the longest arrays every STEP-th element is kept; a prime, so that every row and column is met.
STEPS = {"mlm_logits": 37, "all_encoder_layers": 5, f"grad/{TABLE}": 13, f"onehot/after_10/{TABLE}": 13}
TFHUB_STEPS = {"sequence_output": 7, "mlm_logits": 37}
TRAINING_ROWS = 250  # Of the 8,000 rows of the vocabulary, in the checkpoint with optimizer slots.
CHECKPOINTS = {
  "tiny_training": "ckpt_tiny/model.ckpt-10",
  "tiny_groups": "ckpt_tiny_groups/model.ckpt-best",
  "tiny_mnli": "ckpt_tiny_mnli/model.ckpt",
  "tiny_race": "ckpt_tiny_race/model.ckpt",
  "tiny_squad_v2": "ckpt_tiny_squad_v2/model.ckpt",
}


def write_arrays(name: str, arrays: dict[str, np.ndarray], steps: dict[str, int] | None = None) -> None:
  """Whole arrays under their names; one of which every 7th element is kept as `name@7`, flat."""
  kept = {}
  for key, array in arrays.items():
    step = (steps or {}).get(key, 1)
    kept[key if step == 1 else f"{key}@{step}"] = array if step == 1 else array.reshape(-1)[::step]
  np.savez_compressed(OUT / f"{name}.npz", **kept)


def write_json(name: str, content: Any) -> None:
  text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
  # No time and no name in the header: the same content is the same file.
  with open(OUT / f"{name}.json.gz", "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as stream:
    stream.write(text.encode())


def read_bundle(prefix: pathlib.Path) -> dict[str, np.ndarray]:
  reader = tf.train.load_checkpoint(str(prefix))
  return {name: np.asarray(reader.get_tensor(name)) for name in sorted(reader.get_variable_to_shape_map())}


def kept_of_lamb(name: str) -> bool:
  """Which arrays of the ten LAMB steps are kept: two steps of gathered rows, ten of one-hot products."""
  if name.startswith(("gather/after_1/", "gather/after_2/")):
    return TABLE not in name and not name.endswith("/global_step")
  return not name.startswith("gather/after_10/") and not name.endswith("/global_step")


def record(oracle: pathlib.Path) -> None:
  for name in ("tiny", "tiny_groups"):
    arrays = dict(np.load(oracle / f"golden_{name}.npz"))
    del arrays["masked_lm_log_probs"]  # They follow from the logits.
    write_arrays(name, arrays, STEPS)
  lamb = {key: value for key, value in np.load(oracle / "golden_lamb.npz").items() if kept_of_lamb(key)}
  write_arrays("lamb", lamb, STEPS)
  write_arrays("heads", dict(np.load(oracle / "golden_heads.npz")))
  write_arrays("tfhub_base", dict(np.load(oracle / "tfhub_albert_base/golden.npz")), TFHUB_STEPS)

  # One checkpoint as it was written; of the others what differs from it, and the names of what does not.
  folder = OUT / "ckpt_tiny"
  folder.mkdir(exist_ok=True)
  for file in ("albert_config.json", "model.ckpt-best.index", "model.ckpt-best.data-00000-of-00001"):
    shutil.copyfile(oracle / "ckpt_tiny" / file, folder / file)
  tiny = read_bundle(folder / "model.ckpt-best")
  own = {}
  for name, prefix in CHECKPOINTS.items():
    tensors = read_bundle(oracle / prefix)
    if name == "tiny_training":
      tensors = {
        key: array[:TRAINING_ROWS] if 8000 in array.shape else array for key, array in tensors.items()
      }
    same = {key for key, array in tensors.items() if key in tiny and tiny[key].tobytes() == array.tobytes()}
    own[f"{name}@same"] = np.array(sorted(same))
    own.update({f"{name}/{key}": array for key, array in tensors.items() if key not in same})
  np.savez_compressed(OUT / "checkpoints.npz", **own)
  shutil.copyfile(oracle / "ckpt_tiny_groups/albert_config.json", OUT / "tiny_groups_config.json")

  spm = sentencepiece_model_pb2.ModelProto.FromString((oracle / "spm/spm8k.model").read_bytes())
  spm.trainer_spec.ClearField("input")  # Paths of the machine that trained it.
  spm.trainer_spec.ClearField("model_prefix")
  (OUT / "spm8k.model").write_bytes(spm.SerializeToString())

  for name in ("tokenization", "start_piece", "glue_features", "squad_features"):
    content = json.loads((oracle / f"golden_{name}.json").read_text(encoding="utf-8"))
    if name == "start_piece":
      content["start_piece"] = content["start_piece"]["spm8k"]
    write_json(name, content)
  shutil.copyfile(oracle / "golden_squad_input.json", OUT / "squad_input.json")
  shutil.copyfile(
    oracle / "tfhub_albert_base/released_variables_crc32c.tsv", OUT / "released_variables_crc32c.tsv"
  )
  for path in OUT.rglob("*"):
    path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
  record(pathlib.Path(sys.argv[1]))
