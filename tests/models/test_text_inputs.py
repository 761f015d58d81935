"""Texts that Keras models refuse or read in a way of their own."""

import re
import zipfile

import keras
import numpy as np
import pytest
from support import tiny_run
import tensorflow as tf

from albert_tf import AdamW, AlbertClassifier, AlbertEncoder, AlbertPreprocessor
from albert_tf.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn.t accept:DeprecationWarning")
TEXTS = ["the sky is blue", "small birds sing all day long", "grass"]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp("keras")
  tokenizer = tiny_run.train_tokenizer(folder)
  model = tiny_run.tiny_model(tokenizer.vocab_size, max_position_embeddings=128)
  tiny_run.write_run(folder / "run", model, tokenizer)
  return folder / "run"


def test_what_is_refused(run, tmp_path):
  model = AlbertClassifier.from_pretrained(str(run), num_labels=2)
  model.compile("adam", loss=LOSS)
  ids = np.ones([2, 5], np.int32)
  tokenizer = model.preprocessor.tokenizer
  choices = AlbertPreprocessor(tokenizer, kind="choices")
  for call, message in [
    (lambda: model(ids), r"takes a mapping with input_ids.*int32, \[2, 5\]"),
    (lambda: model({"input_ids": tf.constant([["a"]])}), r"takes text and text_pair.*Received: input_ids"),
    (lambda: model.preprocessor(ids), "takes strings. Received: text of int32"),
    (lambda: model.predict("one"), "Put it in a list"),
    (lambda: model.predict((TEXTS, TEXTS, TEXTS)), "takes text and text_pair"),
    (lambda: model.predict(["a", None]), "text with None among them"),
    (
      lambda: choices.named({"context": TEXTS[:2], "question": TEXTS[:2], "choices": [["a"], ["b", "c"]]}),
      "as many choices",
    ),
    (lambda: AlbertPreprocessor(tokenizer, kind="words")(TEXTS), "list of strings for each row"),
    (lambda: AlbertPreprocessor(tokenizer, kind="question", max_length=67), r"max_query_length \+ 3"),
    (lambda: model.fit(TEXTS, [0, 2, 1]), "from 0 to 1. Received: 2 in row 1"),
    (lambda: model.fit(TEXTS, ["0", "1", "good"]), "label_names, 0, 1. Received: 'good'"),
    (lambda: model.fit(tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 1]))), "Batch the data set first"),
    (lambda: model.export(str(tmp_path)), "exists"),
    (lambda: AlbertClassifier(model.config, head_options={"num_labels": 2})(TEXTS), "once it has a preproc"),
    (lambda: AlbertClassifier.from_pretrained(str(run)), "neither num_labels nor label_names"),
    (lambda: AlbertClassifier.from_pretrained("albert-base-v2", num_labels=2), "albert-base-v2.*downloaded"),
    (lambda: AlbertEncoder.from_pretrained(str(run), max_length=129), "max_position_embeddings=128"),
  ]:
    with pytest.raises(UserError, match=message):
      call()


def test_names_of_classes_are_labels_too(run):
  model = AlbertClassifier.from_pretrained(str(run), label_names=["bad", "good"])
  model.compile(AdamW(0.0), loss=LOSS)
  by_number, by_name = (
    model.evaluate(TEXTS, labels, verbose=0) for labels in ([0, 1, 1], np.array(["bad", "good", "good"]))
  )
  assert by_number == by_name


def test_weights_of_rows_are_a_list_too(run):
  model = AlbertClassifier.from_pretrained(str(run), num_labels=2)
  model.compile(AdamW(0.0), loss=LOSS)
  held = (TEXTS, [0, 1, 1], [0.0, 0.0, 0.0])
  history = model.fit(
    TEXTS, [0, 1, 1], sample_weight=[0.0, 0.0, 0.0], validation_data=held, verbose=0
  ).history
  assert history["loss"] == history["val_loss"] == [0.0]


def test_an_empty_word_keeps_its_place(run):
  words = AlbertPreprocessor.from_pretrained(str(run), kind="words")
  positions = words({"words": [["sky", "", "sky", ""]]})["word_positions"].numpy()[0]
  assert positions[0] == 1
  assert positions[2] > 1
  assert positions[1] == positions[3] == 0


def test_a_file_of_another_version_is_refused(run, tmp_path):
  model = AlbertEncoder.from_pretrained(str(run))
  model.save(tmp_path / "m.keras")
  with zipfile.ZipFile(tmp_path / "m.keras") as old, zipfile.ZipFile(tmp_path / "n.keras", "w") as new:
    for name in old.namelist():
      content = old.read(name)
      if name == "config.json":
        content = re.sub(rb'"file_version": \d+', b'"file_version": 99', content)
      new.writestr(name, content)
  with pytest.raises(UserError, match=r"must have the format 1.*the format 99"):
    keras.saving.load_model(tmp_path / "n.keras")
