"""SavedModels for TensorFlow Serving: `export` makes them, `fill_mask` uses one."""

from albert_tf.serving.export import MODEL_KINDS, export_saved_model
from albert_tf.serving.fill_mask import Candidate, FillMask

__all__ = ["MODEL_KINDS", "Candidate", "FillMask", "export_saved_model"]
