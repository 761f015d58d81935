"""Gives signatures of a written SavedModel the method that servers offer them under."""

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.python.saved_model import fingerprinting_utils


def set_method_names(directory: str, names: Mapping[str, str]) -> None:
  """Rewrites `saved_model.pb`.

  `tf.saved_model.save` writes every signature as Predict, and a server's Classify and
  Regress refuse that.

  Args:
    directory: a SavedModel that no server sees yet.
    names: signature → `tf.saved_model.CLASSIFY_METHOD_NAME` or another.
  """
  if not names:
    return
  updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(directory)
  for signature, method in names.items():
    updater.replace_method_name(signature_key=signature, method_name=method)
  updater.save()
  fingerprinting_utils.write_fingerprint(directory)  # It covers the signatures.
