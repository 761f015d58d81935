"""Keras models with texts: the code of the documentation, exact files and exports, and refusals."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
from reference import tokenization as reference
from serving.conftest import TASKS as SPECS
from support import tiny_run, wordpiece
from support.columns import Column
from support.commands.child_processes import start_python
from support.stacks import slow_by_default
import tensorflow as tf

from albert_tf import AdamW, AlbertClassifier, AlbertConfig, AlbertEncoder, AlbertPreprocessor
from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.compat import KERAS_3
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.keras_api.pretrained import AlbertMaskedLM
from albert_tf.keras_api.sentence_vectors import AlbertSentenceEncoder
from albert_tf.keras_api.tasks import AlbertMultipleChoice, AlbertQuestionAnswering, AlbertTagger
from albert_tf.modeling import named_variables
from albert_tf.serving.lite import export_lite
from albert_tf.serving.loaded_model import LoadedModel
from albert_tf.serving.settings import ExportSettings, LiteSettings

pytestmark = pytest.mark.filterwarnings(
  "ignore:__array__ implementation doesn.t accept:DeprecationWarning"
)
ROOT = pathlib.Path(__file__).parents[2]
TEXTS = ["the sky is blue", "small birds sing all day long", "grass"]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
TASKS = {
  AlbertClassifier: SPECS["pair"],
  AlbertQuestionAnswering: SPECS["squad_2.0"],
  AlbertMultipleChoice: SPECS["choice"],
  AlbertSentenceEncoder: TaskSpec(
    kind="sentence_vectors", name="v", pooling="cls", normalize=False, max_seq_length=12
  ),
  AlbertTagger: SPECS["tags"],
}
INPUTS = {
  AlbertClassifier: (TEXTS, TEXTS[::-1]),
  AlbertQuestionAnswering: {"question": TEXTS, "context": [" ".join(TEXTS)] * 3},
  AlbertMultipleChoice: {
    "context": TEXTS,
    "question": ["the _ is", "", "birds"],
    "choices": [["sky", "grass"]] * 3,
  },
  AlbertSentenceEncoder: TEXTS,
  AlbertTagger: {"words": [text.split() for text in TEXTS]},
  AlbertMaskedLM: ["the [MASK] is [MASK]", "[MASK] sing"],
  AlbertEncoder: TEXTS,
}
# Without a head, with one, and with several inputs and outputs.
QUICK_KINDS = (AlbertEncoder, AlbertClassifier, AlbertQuestionAnswering)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A pretrained run whose positions are enough for texts of the documentation."""
  folder = tmp_path_factory.mktemp("keras") / "run"
  return pathlib.Path(tiny_run.write_pretrained(folder, max_position_embeddings=128))


@pytest.fixture(scope="module")
def classifier(run):
  """Of two named classes, compiled; it computes eagerly, and training leaves its weights as they are."""
  model = AlbertClassifier.from_pretrained(run, label_names=["bad", "good"])
  model.compile(AdamW(0.0), loss=LOSS, run_eagerly=True)
  return model


@pytest.fixture
def in_folder(run, tmp_path, monkeypatch):
  """Writes the files that the guides' code reads into the working directory."""
  monkeypatch.chdir(tmp_path)
  for name in ("run", "albert_base_v2", "domain"):
    (tmp_path / name).symlink_to(run)
  rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(TEXTS * 4))
  for name in ("train.csv", "dev.csv"):
    (tmp_path / name).write_text("review,stars\n" + rows)
  (tmp_path / "glue/STS-B").mkdir(parents=True)
  pairs = zip(TEXTS, TEXTS[::-1], (0.0, 5.0, 1.5), strict=True)
  rows = "".join(f"{first}\t{second}\t{score}\n" for first, second, score in pairs)
  for name in ("train.tsv", "dev.tsv"):
    (tmp_path / "glue/STS-B" / name).write_text("sentence1\tsentence2\tscore\n" + rows)
  return tmp_path


def source_of(kind, run, folder):
  """A run of the model's task, or the pretrained run."""
  if kind not in TASKS:
    return run
  encoder = AlbertEncoder.from_pretrained(run)
  tokenizer = encoder.preprocessor.tokenizer
  tiny_run.write_fine_tuned_run(folder, TASKS[kind], encoder.config, tokenizer)
  return folder


def served(folder):
  """The answers of a SavedModel to the texts."""
  signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
  return signature(text=tf.constant(TEXTS))


def blocks(path, heading):
  text = (ROOT / path).read_text(encoding="utf-8")
  if heading:
    text = text.partition(heading)[2].partition("\n## ")[0]
  return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


# Page and heading ("": the whole page) of code that runs as it is written.
QUICK_PAGES = [("docs/checkpoints.md", ""), ("docs/own_domain.md", "")]
SLOW_PAGES = [
  ("README.md", "## Python"),
  ("docs/finetuning.md", ""),
  ("docs/finetuning_tasks.md", ""),
  ("docs/keras.md", ""),
  ("docs/hidden_states.md", ""),
  ("docs/freezing.md", ""),
  ("docs/imbalanced.md", ""),
  ("docs/long_texts.md", ""),
  ("docs/callbacks.md", ""),
]


@pytest.mark.timeout(900)  # All blocks of a page are one test.
@pytest.mark.parametrize(
  ("path", "heading"),
  QUICK_PAGES + [pytest.param(*page, marks=pytest.mark.slow) for page in SLOW_PAGES],
)
def test_the_documentation_as_written(path, heading, in_folder, mirrored_2, monkeypatch):
  # TensorFlow 2.15 has one group of devices a process: that of the other test with replicas.
  monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda *_: mirrored_2)
  names = {}
  for block in blocks(path, heading):
    exec(compile(block, path, "exec"), names)
  if path == "README.md":
    want = tf.nn.softmax(names["model"](TEXTS))
    np.testing.assert_allclose(served("saved_model/1")["probabilities"], want, atol=1e-5)
    assert [path.name for path in (in_folder / "saved_model").iterdir()] == ["1"]


def test_the_documentation_as_written_has_code():
  assert [page for page in QUICK_PAGES + SLOW_PAGES if not blocks(*page)] == []


@pytest.mark.slow
def test_a_task_of_ones_own_as_written(in_folder, monkeypatch):
  """Its own metric chooses the weights, and the run is loaded like any other."""
  # The tests' process has four CPU devices: another group of replicas than `mirrored_2` would break it.
  monkeypatch.setattr(
    "albert_tf.finetuning.run.make_strategy", lambda _: tf.distribute.OneDeviceStrategy("CPU:0")
  )
  (in_folder / "reviews").mkdir()
  texts = [f"{text} {stars}" for text in TEXTS for stars in range(1, 6)]
  rows = "".join(f"{text}\t{text[-1]}\n" for text in texts)
  for name in ("train.tsv", "dev.tsv"):
    (in_folder / "reviews" / name).write_text("review\tstars\n" + rows)
  as_a_run, several_numbers = blocks("docs/own_task.md", "")
  names = {}
  exec(compile(as_a_run, "docs/own_task.md", "exec"), names)
  results = json.loads((in_folder / "runs/stars/results.json").read_text())
  assert results["best_metric"] == "kappa"
  assert results["kappa"] == max(row["kappa"] for row in results["history"].values())
  # The model that is loaded gives the answers that were stored.
  predictions = (in_folder / "runs/stars/predictions_eval.tsv").read_text().splitlines()[1:]
  answers = names["model"].predict(texts, verbose=0).argmax(axis=-1)
  assert [line.split("\t")[1] for line in predictions] == [str(1 + n) for n in answers.tolist()]

  exec(compile(several_numbers, "docs/own_task.md", "exec"), names)
  assert names["model"].predict(names["texts"], verbose=0).shape == (2, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # KerasTuner's, of Python's threads.
def test_the_searches_as_written(in_folder, monkeypatch, capsys):
  """Runs the search examples, with one trial of each."""
  for package in ("keras_tuner", "optuna"):  # Of the environment for `make test-interop`.
    pytest.importorskip(package)
  (in_folder / "tpu_scripts").symlink_to(ROOT / "tpu_scripts")
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  for block in blocks("docs/search.md", ""):
    capsys.readouterr()
    exec(compile(block.replace("trials=10", "trials=1"), "docs/search.md", "exec"), {})
    assert "'learning_rate': " in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_a_file_needs_one_import(run, in_folder):
  model = AlbertClassifier.from_pretrained("run", num_labels=2)
  model.compile(AdamW(0.01), loss=LOSS)
  model.fit(TEXTS, [0, 1, 0], verbose=0)
  model.save("m.keras")
  code = (
    "import keras; from albert_tf import AlbertClassifier; m = keras.saving.load_model('m.keras'); import numpy as np;"
    f"np.save('out.npy', m.predict({TEXTS}, verbose=0)); print(type(m.optimizer).__name__)"
  )
  stdout, stderr = start_python("-c", code, PYTHONPATH=str(ROOT)).communicate(timeout=200)
  assert stdout.strip() == "AdamW", stderr[-2000:]
  np.testing.assert_array_equal(np.load("out.npy"), model.predict(TEXTS, verbose=0))


@pytest.mark.parametrize(
  "kind",
  [kind if kind in QUICK_KINDS else pytest.param(kind, marks=slow_by_default) for kind in INPUTS],
  ids=lambda kind: kind.__name__,
)
def test_every_model_from_its_run_to_a_file(kind, run, tmp_path):
  """Head, labels and tokenizer are restored; data, texts and a file's model give the same."""
  model = kind.from_pretrained(source_of(kind, run, tmp_path / "run"))
  assert getattr(model, "task", None) == TASKS.get(kind)
  model.save(tmp_path / "m.keras")
  model.run_eagerly = True
  predicted = model.predict(INPUTS[kind], verbose=0)
  again = keras.saving.load_model(tmp_path / "m.keras")
  outputs = (predicted, model(INPUTS[kind]), again(INPUTS[kind]))
  for of_data, direct, of_file in zip(*map(tf.nest.flatten, outputs), strict=True):
    np.testing.assert_allclose(of_data, direct, atol=1e-5)
    np.testing.assert_array_equal(of_file, direct)


def test_texts_are_the_ids_of_the_tokenizer(classifier):
  ids = reference.batch(classifier.preprocessor.tokenizer, TEXTS, TEXTS[::-1])
  want = classifier.predict(ids, verbose=0)
  pairs = tf.data.Dataset.from_tensor_slices({"text": TEXTS, "text_pair": TEXTS[::-1]}).batch(2)
  for x in ((TEXTS, TEXTS[::-1]), (np.array(TEXTS), np.array(TEXTS[::-1], object)), pairs):
    np.testing.assert_allclose(classifier.predict(x, verbose=0), want, atol=1e-5)


def test_a_tpu_gets_one_length(run, monkeypatch):
  """With several lengths it would compile the model for each."""
  model = AlbertClassifier.from_pretrained(run, num_labels=2, max_length=30)
  dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(1)

  def lengths():
    batches = model.prepared_batches(dataset)
    ids, *_ = model.examples(TEXTS).padded(model.fixed_length())
    found = {batch["input_ids"].shape[1] for batch in batches}, ids["input_ids"].shape[1]
    return found, {spec.shape[1] for spec in batches.element_spec.values()}

  assert lengths() == (({3, 11, 16}, 16), {None})
  monkeypatch.setattr(tf.distribute, "TPUStrategy", type(model.distribute_strategy))
  assert lengths() == (({30}, 30), {30})


@pytest.mark.slow
def test_the_encoder_inside_a_functional_model(run, tmp_path):
  encoder = AlbertEncoder.from_pretrained(run)
  encoder.trainable = False
  text = keras.Input([], dtype="string", name="text")
  model = keras.Model(text, keras.layers.Dense(2)(encoder(text)["pooled_output"]))
  model.compile("adam", loss=LOSS)
  before = encoder.get_weights()
  data = tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 1])).batch(2)
  model.fit(data, shuffle=False, verbose=0)
  assert all(np.array_equal(a, b) for a, b in zip(before, encoder.get_weights(), strict=True))
  want = model.predict(tf.constant(TEXTS), verbose=0)
  model.save(tmp_path / "f.keras")
  again = keras.saving.load_model(tmp_path / "f.keras")
  np.testing.assert_array_equal(again.predict(tf.constant(TEXTS), verbose=0), want)
  if KERAS_3:  # Keras' own export; that of Keras 2 leaves the tokenizer's resource out.
    model.export(str(tmp_path / "e"))
    exported = tf.saved_model.load(str(tmp_path / "e"))
    np.testing.assert_allclose(exported.serve(tf.constant(TEXTS)), want, atol=1e-5)
  assert {name.split("/")[0] for name in named_variables(encoder)} == {"bert"}


@pytest.mark.stack
def test_a_sequential_model_takes_texts(run):
  """Keras 3 gives a Sequential without an Input floats, so it is told to have one."""
  model = AlbertClassifier.from_pretrained(run, num_labels=2)
  texts = tf.constant(TEXTS)
  want = tf.nn.softmax(model(TEXTS))
  of_input = keras.Sequential([keras.Input([], dtype="string"), model, keras.layers.Softmax()])
  np.testing.assert_allclose(of_input(texts), want, atol=1e-5)
  without = keras.Sequential([model, keras.layers.Softmax()])
  if KERAS_3:
    message = r'float32.*Sequential.*keras\.Input\(\[\], dtype="string"'
    with pytest.raises(UserError, match=message):
      without.predict(texts, verbose=0)
  else:
    np.testing.assert_allclose(without(texts), want, atol=1e-5)
  of_input.compile(AdamW(0.1), loss="sparse_categorical_crossentropy", run_eagerly=True)
  of_input.fit(texts, tf.constant([0, 1, 1]), verbose=0)
  assert not np.allclose(of_input.predict(texts, verbose=0), want, atol=1e-3)


@pytest.mark.parametrize("kind", [AlbertClassifier, AlbertEncoder])
def test_a_subclass_continues_a_run_of_its_base_class(kind, run, tmp_path):
  """Head, labels and lengths are the run's, and what it saves is a run of the base class."""
  source = source_of(kind, run, tmp_path / "run")
  expected = kind.from_pretrained(source)
  mine = type("Mine", (kind,), {}).from_pretrained(source)
  mine.save_pretrained(tmp_path / "saved")
  for model in (mine, kind.from_pretrained(tmp_path / "saved")):
    assert getattr(model, "task", None) == TASKS.get(kind)
    assert model.preprocessor.max_length == expected.preprocessor.max_length
    weights = named_variables(model)
    for name, variable in named_variables(expected).items():
      np.testing.assert_array_equal(weights[name], variable, err_msg=name)


def test_the_head_of_another_task_is_not_taken(run, tmp_path):
  """Heads of classes and of tags have the same names and, in this test, the same shape."""
  source = source_of(AlbertTagger, run, tmp_path / "tags")
  tagger = AlbertTagger.from_pretrained(source)
  model = AlbertClassifier.from_pretrained(source, num_labels=4, preprocessor=None)
  assert model.preprocessor is None
  assert not np.array_equal(model.head.get_weights()[0], tagger.head.get_weights()[0])
  np.testing.assert_array_equal(model.encoder.get_weights()[0], tagger.encoder.get_weights()[0])
  of_two = AlbertClassifier.from_pretrained(source, label_names=["a", "b"])
  assert of_two.head.get_weights()[0].shape[0] == 2


def test_a_fine_tuned_run_has_its_own_labels(run, tmp_path):
  """In another order every answer would be another; labels without names may get some."""
  trained = tmp_path / "trained"
  AlbertClassifier.from_pretrained(run, label_names=["no", "yes"]).save_pretrained(trained)
  read = AlbertClassifier.from_pretrained
  assert read(trained, label_names=["no", "yes"]).task.label_names == ("no", "yes")
  for names in (["yes", "no"], ["no", "yes", "maybe"], ["a", "b"], ["no"]):
    with pytest.raises(UserError, match=r"label_names=\('\w+'.*trained/.* with \('no', 'yes'\)"):
      read(trained, label_names=names)

  numbered = tmp_path / "numbered"
  read(run, num_labels=2).save_pretrained(numbered)
  want = read(numbered)
  named = read(numbered, label_names=["no", "yes"])
  assert named.task.label_names == ("no", "yes")
  np.testing.assert_array_equal(named.head.get_weights()[0], want.head.get_weights()[0])
  for names in ([1, 0], ["1", "2"], ["a", "b", "c"]):
    with pytest.raises(UserError, match=r"numbered/.* with \('0', '1'\)"):
      read(numbered, label_names=names)

  AlbertQuestionAnswering.from_pretrained(run, squad_version="1.1").save_pretrained(tmp_path / "qa")
  with pytest.raises(UserError, match=r"squad_version='2.0'.* with '1.1'"):
    AlbertQuestionAnswering.from_pretrained(tmp_path / "qa", squad_version="2.0")


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"num_labels": None}, "Received: .*num_labels .*label_names"),
    ({"num_labels": 2.5}, "num_labels"),
    ({"num_labels": -1}, "num_labels"),
    ({"max_len": 9}, "max_length, .* Received: max_len"),
    ({"head_dropout": 0.1}, "classifier_dropout"),
    ({"max_length": "32"}, "max_length"),
    ({"num_labels": None, "label_names": "ab"}, "label_names"),
    ({"path": "albert-base-v2"}, "albert-base-v2.*downloaded"),
  ],
)
def test_arguments_that_are_refused(options, message, run):
  with pytest.raises(UserError, match=message):
    AlbertClassifier.from_pretrained(**{"path": run, "num_labels": 2} | options)


def test_texts_and_labels_that_are_refused(run, classifier):
  ids = np.ones([2, 5], np.int32)
  tokenizer = classifier.preprocessor.tokenizer
  choices = {"context": TEXTS[:2], "question": TEXTS[:2], "choices": [["a"], ["b", "c"]]}
  rows = tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 1]))
  named = tf.data.Dataset.from_tensor_slices((TEXTS, ["bad", "good", "good"])).batch(2)
  for call, message in [
    (lambda: classifier.predict("one"), "Received: .*'one'"),
    (lambda: classifier.predict(["a", None]), "Received: text with None.*Leave rows"),
    (lambda: classifier.predict([]), "Received: none"),
    (lambda: classifier.predict(["a\ud800"]), r"Received: .*\\ud800"),
    (lambda: classifier.predict(np.array("abc")), r"Received: .*\(\)"),
    (lambda: classifier.predict(text for text in TEXTS), "Received: one string"),
    (lambda: classifier.fit(TEXTS), "`fit` needs y"),
    (lambda: classifier.fit(TEXTS, [0, 1, 1], validation_data=(TEXTS,)), "`validation_data` needs"),
    (lambda: classifier.fit(rows.batch(2).map(lambda x, _: x)), "`fit` needs y"),
    (lambda: classifier.evaluate(TEXTS), "`evaluate` needs y"),
    (lambda: classifier.test_on_batch(TEXTS), "`test_on_batch` needs y"),
    (lambda: classifier.fit(named), r"Received: strings.*as_numpy_iterator"),
    (lambda: classifier.fit(TEXTS, ["bad", "good", "ugly"]), "bad, good. Received: ugly in row 2"),
    (lambda: classifier.fit(TEXTS, [[1, 0], [0, 1], [0, 1]]), r"Received: .*\[3, 2\]"),
    (lambda: classifier(ids), "int32.*input_ids"),
    (lambda: classifier({"input_ids": tf.constant([["a"]])}), "text_pair.*Received: input_ids"),
    (lambda: classifier.preprocessor(ids), "Received: text of int32"),
    (lambda: AlbertPreprocessor(tokenizer, kind="choices")(choices), "Received: .*'b', 'c'"),
    (lambda: AlbertPreprocessor(tokenizer, kind="words")(TEXTS), "Received in row 0: "),
    (lambda: AlbertPreprocessor(tokenizer, kind="question", max_length=67), "max_query_length"),
    (lambda: classifier.fit(TEXTS, [0, 1, 1], class_weight={2: 0.0}), "Received: 2"),
    (lambda: classifier.fit(rows), r"Received: .*\(\)"),
    (lambda: classifier.export(run), f"Received: {run},"),
    (
      lambda: AlbertClassifier(classifier.config, head_options={"num_labels": 2})(TEXTS),
      "preprocessor=",
    ),
    (lambda: AlbertEncoder.from_pretrained(run, max_len=9), "Received: max_len"),
  ]:
    with pytest.raises(UserError, match=message):
      call()


def test_what_keras_would_write_wrongly_names_the_remedy(classifier, tmp_path):
  path = tmp_path / "e"
  signature = [tf.TensorSpec([1, 8], tf.int32)]
  for call, remedy in [
    (lambda: classifier.export(path, format="litert"), "export_lite.py"),
    (lambda: classifier.export(path, format="onnx"), "docs/serving.md"),
    (lambda: classifier.export(path, input_signature=signature), "docs/keras.md"),
    (lambda: classifier.export(path, topk=5), "top_k"),
    (lambda: classifier.quantize("int8"), "--weights=int8"),
    (lambda: classifier.save(tmp_path / "e.h5"), r"\.keras"),
  ]:
    with pytest.raises(UserError, match=remedy):
      call()
  assert not list(tmp_path.iterdir())


def test_a_saved_model_keeps_the_length_of_its_preprocessor(run, tmp_path):
  preprocessor = AlbertPreprocessor.from_pretrained(run, max_length=16)
  config = AlbertEncoder.from_pretrained(run).config
  model = AlbertClassifier(config, num_labels=2, preprocessor=preprocessor)
  model(TEXTS)
  model.save_pretrained(tmp_path / "saved")
  assert AlbertClassifier.from_pretrained(tmp_path / "saved").preprocessor.max_length == 16


@slow_by_default
def test_a_signature_of_ones_own_answers_in_servers_and_in_tensorflow(classifier, in_folder):
  """As the guide says, which the refusal of an `input_signature` names."""
  names = {"model": classifier, "tf": tf}
  [block] = blocks("docs/keras.md", "## A signature of your own")
  exec(compile(block, "docs/keras.md", "exec"), names)
  want = tf.nn.softmax(classifier(TEXTS))
  found = LoadedModel("own/1").run("serving_default", {"text": tiny_run.as_bytes(TEXTS)})
  np.testing.assert_allclose(found["probabilities"], want, atol=1e-5)
  tf.saved_model.save(classifier, "own/2", signatures=names["mood"])
  np.testing.assert_allclose(served("own/2")["probabilities"], want, atol=1e-5)


@pytest.mark.slow  # An export.
def test_a_head_of_ones_own_keeps_its_labels(run, in_folder):
  """The guide's export names the labels as that of a classifier does."""
  text = keras.Input([], dtype="string")
  names = {"encoder": AlbertEncoder.from_pretrained(run), "text": text, "texts": TEXTS}
  names |= {"keras": keras, "loss": LOSS, "tf": tf}
  [block] = blocks("docs/keras.md", "## A head of your own")
  exec(compile(block, "docs/keras.md", "exec"), names)
  logits = names["moods"](tf.constant(TEXTS)).numpy()
  found = LoadedModel("moods/1").run("serving_default", {"text": tiny_run.as_bytes(TEXTS)})
  np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(logits), atol=1e-5)
  label_names = [name.encode() for name in names["names"]]
  assert found["label"].tolist() == [label_names[best] for best in logits.argmax(axis=-1)]
  assert found["label_names"].tolist() == [label_names] * len(TEXTS)


def test_weights_that_are_not_finite_are_not_saved(run, tmp_path):
  model = AlbertMaskedLM.from_pretrained(run)
  name, variable = list(named_variables(model).items())[3]
  variable.assign(tf.fill(variable.shape, float("nan")))
  path = str(tmp_path / "out")
  for call in (
    lambda: model.save_pretrained(path),
    lambda: model.export(path),
    lambda: export_lite(model, path, LiteSettings()),
  ):
    with pytest.raises(UserError, match=f"Received: .*{name} "):
      call()
  assert not list(tmp_path.iterdir())


def test_names_of_classes_have_weights_and_lists_are_weights(classifier):
  none = {"bad": 0.0, "good": 0.0}
  history = classifier.fit(TEXTS, [0, 1, 1], class_weight=none, verbose=0).history
  assert history["loss"] == [0.0]
  held = (TEXTS, [0, 1, 1], [0.0, 0.0, 0.0])
  fitted = classifier.fit(*held[:2], sample_weight=held[2], validation_data=held, verbose=0)
  assert fitted.history["loss"] == fitted.history["val_loss"] == [0.0]


@pytest.mark.parametrize(
  ("options", "labels"),
  [
    ({"label_names": ["sky", "bird"], "problem": "multi_label"}, [["sky"], ["sky", "bird"], []]),
    # The loss says that it is no value.
    pytest.param({"num_labels": 1}, [1, 1, 0], marks=pytest.mark.slow),
    pytest.param(
      {"label_names": ["sky", "bird"]},
      np.array([[True, False], [True, True], [False, False]]),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_labels_that_do_not_exclude_each_other(run, tmp_path, options, labels):
  """Names and 0/1 give the same loss; files keep the kind of task."""
  model = AlbertClassifier.from_pretrained(run, **options)
  loss = keras.losses.BinaryCrossentropy(from_logits=True)
  model.compile(AdamW(0.01), loss=loss, run_eagerly=True)
  logits = model.predict(TEXTS, verbose=0)
  gold = np.array([[1, 0], [1, 1], [0, 0]], float)[:, : logits.shape[1]]
  want = (np.logaddexp(0, logits) - logits * gold).mean()
  assert model.evaluate(TEXTS, labels, verbose=0) == pytest.approx(want, rel=1e-4)
  model.fit(TEXTS, labels, validation_data=(TEXTS, labels), verbose=0)
  model.save(tmp_path / "m.keras")
  model.save_pretrained(tmp_path / "saved")
  of_folder = AlbertClassifier.from_pretrained(tmp_path / "saved")
  assert model.task.kind == "multi_label"
  assert model.task == of_folder.task == keras.saving.load_model(tmp_path / "m.keras").task


@slow_by_default
def test_the_model_of_a_file_exports_its_one_label_with_a_probability(run, tmp_path, capsys):
  model = AlbertClassifier.from_pretrained(run, num_labels=1)
  model.compile("sgd", loss=keras.losses.BinaryCrossentropy(from_logits=True))
  model.save(tmp_path / "m.keras")
  of_file = keras.saving.load_model(tmp_path / "m.keras")
  # As Keras is called.
  of_file.export(tmp_path / "e", "tf_saved_model", verbose=True, input_signature=None)
  assert str(tmp_path / "e") in capsys.readouterr().out
  answers = served(tmp_path / "e")
  want = tf.sigmoid(model(TEXTS))
  np.testing.assert_allclose(answers["probabilities"], want, atol=1e-5)
  np.testing.assert_array_equal(answers["above_threshold"], want >= 0.5)
  assert answers["label_names"].numpy().tolist() == [[b"1"]] * 3


@pytest.mark.stack
def test_an_export_computes_in_float32_after_training_in_16_bits(classifier, tmp_path):
  """float16 is slow on a CPU, and `precision.json` says float32."""
  want = classifier.predict(TEXTS, verbose=0)
  keras.mixed_precision.set_global_policy("mixed_float16")
  try:
    model = AlbertClassifier(
      classifier.config, task=classifier.task, preprocessor=classifier.preprocessor
    )
    model.set_weights(classifier.get_weights())
    assert not np.allclose(model.predict(TEXTS, verbose=0), want, atol=1e-5)
    model.export(tmp_path / "e")
    # The model itself goes on in 16 bits.
    assert keras.mixed_precision.global_policy().name == model.dtype_policy.name == "mixed_float16"
  finally:
    keras.mixed_precision.set_global_policy("float32")
  answers = served(tmp_path / "e")
  np.testing.assert_allclose(answers["probabilities"], tf.nn.softmax(want), atol=1e-6)


def test_labels_of_a_multi_label_model_are_checked(run):
  kind = {"problem": "multi_label"}
  model = AlbertClassifier.from_pretrained(run, label_names=["sky", "bird"], **kind)
  model.compile(AdamW(0.0), loss=keras.losses.BinaryCrossentropy(from_logits=True))
  for labels, message in [
    ([["sky"], ["tree"], []], r"sky, bird. Received: \[\['sky'\], \['tree'\]"),
    ([0, 1, 1], r"0/1, \[n, 2\]"),
    (np.array([[0, 1], [1, 0.5], [0, 0]]), r"0/1, \[n, 2\]"),
  ]:
    with pytest.raises(UserError, match=message):
      model.fit(TEXTS, labels)
  with pytest.raises(UserError, match=r"class_weight .*Received: .*multi_label"):
    model.fit(TEXTS, np.zeros([3, 2]), class_weight={0: 1.0, 1: 2.0})
  with pytest.raises(UserError, match=r"Received: 'binary_crossentropy'.*from_logits=True"):
    model.compile("adam", loss="binary_crossentropy")
  with pytest.raises(UserError, match=r"Received: \(0\.5,\)"):
    AlbertClassifier.from_pretrained(run, num_labels=2, thresholds=[0.5], **kind)
  with pytest.raises(UserError, match=r"token_classification\. Received: 'multi_label'"):
    AlbertTagger.from_pretrained(run, label_names=["sky"], **kind)
  task = AlbertClassifier(model.config, head_options={"num_labels": 3}, **kind).task
  assert (task.kind, task.label_names) == ("multi_label", ("0", "1", "2"))


class Frame:
  """What a data frame of pandas has."""

  def __init__(self, **columns):
    self.columns = list(columns)
    self._lists = columns

  def __getitem__(self, name):
    return self._lists[name]


class Batches(keras.utils.Sequence):
  """The texts, and labels, as two batches."""

  def __init__(self, labels):
    super().__init__()
    self._labels = labels

  def __len__(self):
    return 2

  def __getitem__(self, index):
    rows = slice(2 * index, 2 * index + 2)
    return TEXTS[rows], np.array(self._labels[rows])


def test_texts_in_every_form_that_keras_takes(classifier):
  want = classifier.predict(TEXTS, verbose=0)
  generator = ((TEXTS[rows],) for rows in (slice(2), slice(2, 3)))
  np.testing.assert_allclose(classifier.predict(generator, steps=2, verbose=0), want, atol=1e-5)
  for x in (Batches([0, 1, 1]), Frame(review=TEXTS)):
    np.testing.assert_allclose(classifier.predict(x, verbose=0), want, atol=1e-5)
  pair = Frame(text=TEXTS, text_pair=TEXTS[::-1])
  want = classifier.predict((TEXTS, TEXTS[::-1]), verbose=0)
  np.testing.assert_allclose(classifier.predict(pair, verbose=0), want, atol=1e-5)
  with pytest.raises(UserError, match="Received: a, b"):  # Columns of which none says what it is.
    classifier.predict(Frame(a=TEXTS, b=TEXTS))

  loss = classifier.evaluate(TEXTS, [0, 1, 1], verbose=0)
  assert classifier.evaluate(Batches([0, 1, 1]), verbose=0) == pytest.approx(loss, rel=1e-5)
  names = Batches(["bad", "good", "good"])
  history = classifier.fit(names, validation_data=Batches([0, 1, 1]), verbose=0).history
  assert history["val_loss"][0] == pytest.approx(loss, rel=1e-5)
  # Its strings are bytes.
  data = tf.data.Dataset.from_tensor_slices((TEXTS, ["bad", "good", "good"])).batch(2)
  got = classifier.evaluate(data.as_numpy_iterator(), steps=2, verbose=0)
  assert got == pytest.approx(loss, rel=1e-5)
  with pytest.raises(UserError, match="Received: 7 in row 1"):
    classifier.fit(Batches([0, 7, 1]), verbose=0)
  # Weights without labels stay weights.
  _, labels, weights = classifier.prepared_batch((TEXTS, None, [0.0, 1.0, 2.0]))
  assert (labels, weights.tolist()) == (None, [0.0, 1.0, 2.0])


def test_choices_and_words_in_every_form(run):
  rows = [["sky", "small birds"], ["grass", "trees"], ["day", "sky"]]
  others = {"context": TEXTS, "question": TEXTS}
  of_choices = AlbertPreprocessor.from_pretrained(run, kind="choices")
  of_words = AlbertPreprocessor.from_pretrained(run, kind="words")
  for column in (Column(rows), Column([*map(tuple, rows)]), [*map(np.array, rows)],
                 tf.constant(rows), tf.ragged.constant(rows)):  # fmt: skip
    for layer, name, more in ((of_choices, "choices", others), (of_words, "words", {})):
      want = layer(more | {name: rows})["input_ids"]
      np.testing.assert_array_equal(layer(more | {name: column})["input_ids"], want)

  # A shorter row of choices would be scored with an empty choice.
  unequal = tf.ragged.constant([["sky"], *rows[1:]])
  np.testing.assert_array_equal(
    of_words({"words": unequal})["input_ids"], of_words({"words": unequal.to_list()})["input_ids"]
  )
  with pytest.raises(UserError, match=r"Received: .*b'grass', b'trees'"):
    of_choices(others | {"choices": unequal})
  data = tf.data.Dataset.from_tensor_slices(others | {"choices": unequal}).batch(3)
  with pytest.raises(tf.errors.InvalidArgumentError, match="need the same length"):
    list(data.map(of_choices))
  # Its order is not that of the labels.
  for row in ({"A": "sky"}, {"sky"}, None):
    with pytest.raises(UserError, match=f"in row 1: {row}"):
      of_choices(others | {"choices": Column([rows[0], row, rows[0]])})


def test_a_generator_of_questions_has_answers_as_strings(run):
  reader = AlbertQuestionAnswering.from_pretrained(run, max_length=80)
  batch = ({"question": TEXTS, "context": TEXTS}, ["sky", "birds", ""])
  inputs, labels = reader.examples(*batch).padded()
  ids, positions = reader.prepared_batch(batch)
  assert ids["input_ids"].shape == (3, 80)
  np.testing.assert_array_equal(ids["start_positions"], inputs["start_positions"])
  assert positions.keys() == labels.keys()


def test_predict_runs_eagerly_where_the_model_does(run):
  model = AlbertClassifier.from_pretrained(run, num_labels=2)
  seen = []

  def noted(inputs):
    seen.append(tf.executing_eagerly())
    return tf.zeros([len(TEXTS), 2])

  model.call = lambda inputs, **_: noted(inputs)
  for run_eagerly in (True, False):
    model.compile(run_eagerly=run_eagerly)
    model.predict(TEXTS, verbose=0)
  assert seen == [True, False]


def test_single_batches_of_texts(classifier, monkeypatch):
  loss = classifier.evaluate(TEXTS, [0, 1, 1], verbose=0)
  named = classifier.test_on_batch(TEXTS, ["bad", "good", "good"])
  assert named == pytest.approx(loss, rel=1e-5)
  assert classifier.train_on_batch(TEXTS, [0, 1, 1], [0, 0, 0]) == 0
  assert classifier.train_on_batch(TEXTS, [0, 1, 1], class_weight={"bad": 0, "good": 0}) == 0
  want = classifier.predict(TEXTS, verbose=0)
  np.testing.assert_allclose(classifier.predict_on_batch(TEXTS), want, atol=1e-5)
  with pytest.raises(UserError, match="Received: 2 in row 2"):
    classifier.train_on_batch(TEXTS, [0, 1, 2])
  if KERAS_3:
    monkeypatch.setattr(tf.distribute, "TPUStrategy", type(classifier.distribute_strategy))
    for call in (classifier.train_on_batch, classifier.test_on_batch):
      with pytest.raises(UserError, match=r"Received: .*train_on_batch"):
        call(TEXTS, [0, 1, 1])


def test_layers_behind_the_encoder_skip_padding(run):
  """A text's mean is the same alone and beside a longer text, in a functional model and without."""
  encoder = AlbertEncoder.from_pretrained(run)
  pool = keras.layers.GlobalAveragePooling1D()
  text = keras.Input([], dtype="string")
  functional = keras.Model(text, pool(encoder(text)["sequence_output"]))
  for mean in (functional, lambda texts: pool(encoder(texts)["sequence_output"])):
    beside, alone = mean(tf.constant(TEXTS))[2:], mean(tf.constant(TEXTS[2:]))
    np.testing.assert_allclose(beside, alone, atol=1e-5)


def test_an_empty_word_keeps_its_place(run):
  words = AlbertPreprocessor.from_pretrained(run, kind="words")
  positions = words({"words": [["sky", "", "sky", ""]]})["word_positions"].numpy()[0]
  assert positions[0] == 1
  assert positions[2] > 1
  assert positions[1] == positions[3] == 0


def test_a_path_may_be_a_path_of_pathlib_and_a_tuple_a_list(run, tmp_path):
  model = AlbertClassifier.from_pretrained(run, num_labels=2)
  AlbertPreprocessor.from_pretrained(run).tokenizer.save_pretrained(tmp_path / "vocabulary")
  assert AlbertConfig.from_json_file(run / "albert_config.json") == model.config
  model.save_pretrained(tmp_path / "saved")
  spm_model_file = tmp_path / "vocabulary" / "spm.model"
  options = ConvertOptions(output_format="huggingface", spm_model_file=spm_model_file)
  convert(tmp_path / "saved", tmp_path / "theirs", options)
  assert AlbertClassifier.from_pretrained(tmp_path / "theirs").task.num_labels == 2
  assert ExportSettings(depths=[1, 2]).depths == (1, 2)
  assert FineTuneSettings(seeds=[1, np.int64(2)]).seeds == (1, 2)
  with pytest.raises(UserError, match="Received: PosixPath"):  # It would be a folder named "gs:".
    model.save_pretrained(pathlib.Path("gs://bucket/saved"))


@pytest.mark.slow
def test_models_outlive_clear_session(run, tmp_path):
  """As in a search, which clears the session between two trials; graphs made before and files go on."""
  model = AlbertClassifier.from_pretrained(run, num_labels=2)
  data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3)
  want = model.predict(data, verbose=0)
  pooled = tf.function(lambda text: model.encoder(model.preprocessor(text))["pooled_output"])
  want_pooled = pooled(tf.constant(TEXTS))
  of_words = AlbertPreprocessor.from_pretrained(wordpiece.write_vocabulary(tmp_path / "vocab.txt"))
  want_ids = of_words(TEXTS)["input_ids"]

  keras.backend.clear_session()
  AlbertClassifier.from_pretrained(run, num_labels=2)(TEXTS)
  np.testing.assert_allclose(model.predict(data, verbose=0), want, atol=1e-6)
  np.testing.assert_allclose(pooled(tf.constant(TEXTS)), want_pooled, atol=1e-6)
  np.testing.assert_array_equal(of_words(TEXTS)["input_ids"], want_ids)
  model.save(tmp_path / "m.keras")
  again = keras.saving.load_model(tmp_path / "m.keras")
  np.testing.assert_allclose(again(TEXTS), want, atol=1e-6)
