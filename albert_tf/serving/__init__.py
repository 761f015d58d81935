"""Trained models for use elsewhere.

`export` makes SavedModels: `signatures/` has a file a kind, `layout`, `warmup` and `golden` are what lies beside the
graph, `samples` its inputs. `check` tries an export without this project, through `bare_loader`; `fill_mask` asks one;
`server/` serves them on this machine. `small/` makes LiteRT and ONNX files.
"""

from albert_tf.serving.export import MODEL_KINDS, export_saved_model
from albert_tf.serving.fill_mask import Candidate, FillMask

__all__ = ["MODEL_KINDS", "Candidate", "FillMask", "export_saved_model"]
