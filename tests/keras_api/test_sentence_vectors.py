"""Vectors of texts: pooling, both losses against NumPy, replicas, `encode`, and the package sentence-transformers."""

import functools

import keras
import numpy as np
import pytest
from support import tiny_run
from support.stacks import interop
import tensorflow as tf

from albert_tf import AlbertSentenceEncoder, InBatchNegatives, cosine_regression
from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables

pytestmark = pytest.mark.filterwarnings(
  "ignore:__array__ implementation doesn.t accept:DeprecationWarning"
)
TEXTS = [
  "the sky is blue",
  "small birds sing all day long under old trees",
  "grass",
  "green and blue",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
  return tiny_run.write_pretrained(tmp_path_factory.mktemp("vectors") / "run", **without)


@pytest.mark.parametrize(
  ("pooling", "normalize"),
  [
    ("mean", True),
    ("cls", False),
    pytest.param("mean", False, marks=pytest.mark.slow),
    pytest.param("cls", True, marks=pytest.mark.slow),
  ],
)
def test_vectors_equal_numpy(pooling, normalize, run):
  """Means over positions with mask 1, for N texts in each example; `encode` keeps the order."""
  model = AlbertSentenceEncoder.from_pretrained(run, pooling=pooling, normalize=normalize)
  model.run_eagerly = True
  batch = {name: value.numpy() for name, value in model.preprocessor(TEXTS).items()}
  hidden = model.encoder(batch)["sequence_output"].numpy()
  mask = batch["input_mask"][..., np.newaxis]
  assert 0 < mask.mean() < 1
  want = (hidden * mask).sum(1) / mask.sum(1) if pooling == "mean" else hidden[:, 0]
  if normalize:
    want /= np.linalg.norm(want, axis=1, keepdims=True)
  assert want.shape == (4, 12)
  np.testing.assert_allclose(model.predict(TEXTS, verbose=0), want, atol=1e-5)
  np.testing.assert_allclose(model.encode(TEXTS, batch_size=3), want, atol=1e-5)
  pairs = model.predict((TEXTS, TEXTS[::-1], TEXTS), verbose=0)  # [4, 3, 12]
  np.testing.assert_allclose(pairs, np.stack([want, want[::-1], want], axis=1), atol=1e-5)


def test_texts_to_encode_have_any_form(run):
  model = AlbertSentenceEncoder.from_pretrained(run)
  want = model.encode(TEXTS)
  for texts in ((text for text in TEXTS), tf.constant(TEXTS)):
    np.testing.assert_allclose(model.encode(texts), want, atol=1e-5)
  assert model.encode([]).shape == (0, 12)
  with pytest.raises(UserError, match="None"):
    model.encode(["a", None])
  with pytest.raises(UserError, match=r"Received: .*one text"):  # Not a vector for each character.
    model.encode("one text")
  with pytest.raises(UserError, match=r"batch_size .*Received: 0"):
    model.encode(TEXTS, batch_size=0)


def test_pairs_without_numbers_or_as_a_list_are_refused(run):
  model = AlbertSentenceEncoder.from_pretrained(run)
  model.compile("sgd", loss=InBatchNegatives())
  with pytest.raises(UserError, match=r"np\.arange\(n\)"):
    model.fit((TEXTS, TEXTS[::-1]))
  with pytest.raises(UserError, match=r"Received: .*\(2, 4\)"):
    model.fit([TEXTS, TEXTS[::-1]], np.arange(4))
  with pytest.raises(UserError, match=r"Received: .*nan"):
    model.fit((TEXTS, TEXTS[::-1]), [0, 1, 2, float("nan")])


def test_similarities_of_another_range_are_refused(run):
  model = AlbertSentenceEncoder.from_pretrained(run)
  model.compile("sgd", loss=cosine_regression)
  pairs = (TEXTS, TEXTS[::-1])
  np.testing.assert_array_equal(model.checked_labels([0, 1, 0.5, 0.25], {}), [0, 1, 0.5, 0.25])
  for wrong, received in (([0, 2.5, 5, 1], "Received: 2.5"), ([0, 1, 1, -1], "-1")):
    with pytest.raises(UserError, match=received):
      model.fit(pairs, wrong)
  model.compile("sgd", loss=InBatchNegatives())
  assert model.checked_labels([7, 7, 9, 1], {}).tolist() == [7, 7, 9, 1]


def numpy_loss(vectors, numbers, temperature):
  """The loss of each row: softmax over its own candidates and one of each other group."""
  unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
  losses = []
  for row, number in enumerate(numbers):
    others = [int(np.flatnonzero(numbers == n)[0]) for n in np.unique(numbers) if n != number]
    logits = np.array([unit[row, 0] @ c for j in (row, *others) for c in unit[j, 1:]]) / temperature
    losses.append(np.log(np.exp(logits).sum()) - logits[0])
  return np.array(losses)


@pytest.mark.parametrize("texts", [2, 3])
def test_losses_equal_numpy(texts):
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(5, texts, 7)).astype(np.float32)
  loss = functools.partial(InBatchNegatives(0.3).call, y_pred=vectors)
  for numbers in (np.arange(5), np.array([3, 1, 3, 0, 3])):
    np.testing.assert_allclose(
      loss(numbers[:, np.newaxis]), numpy_loss(vectors, numbers, 0.3), rtol=1e-4
    )
  # What fills a batch up repeats its first row with weight 0: it changes nothing of the others.
  filled = np.concatenate([vectors, vectors[:1], vectors[:1]])
  filled_loss = InBatchNegatives(0.3).call(np.array([0, 1, 2, 3, 4, 0, 0]), filled)
  np.testing.assert_allclose(filled_loss[:5], loss(np.arange(5)), rtol=1e-5)
  first, second = vectors[:, 0], vectors[:, 1]
  cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
  wanted = rng.uniform(size=5)
  found = cosine_regression(wanted[:, np.newaxis], vectors[:, :2])
  np.testing.assert_allclose(found, (cosine - wanted) ** 2, rtol=1e-4)


@pytest.mark.slow
def test_one_and_two_replicas_make_the_same_update(run, mirrored_2, tmp_path):
  """The negatives are of the whole batch. With a learning rate of 1 the update is the gradient."""
  x = (TEXTS, TEXTS[::-1], [text + " day" for text in TEXTS])
  losses, weights = [], []
  for strategy in (tf.distribute.get_strategy(), mirrored_2):
    with strategy.scope():
      model = AlbertSentenceEncoder.from_pretrained(run)
      before = {name: v.numpy() for name, v in named_variables(model).items()}
      model.compile(keras.optimizers.SGD(1.0), loss=InBatchNegatives(temperature=0.5))
    history = model.fit(x, np.arange(4), batch_size=4, shuffle=False, verbose=0)
    losses.append(history.history["loss"][0])
    weights.append({name: v.numpy() - before[name] for name, v in named_variables(model).items()})
  one, two = weights
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)
  assert sum(np.abs(update).max() > 1e-3 for update in one.values()) > 10
  for name, update in one.items():
    np.testing.assert_allclose(two[name], update, atol=1e-5, err_msg=name)
  model.save(tmp_path / "m.keras")
  assert keras.saving.load_model(tmp_path / "m.keras").loss.temperature == 0.5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
def test_sentence_transformers_loads_the_folder(pooling, normalize, run, tmp_path):
  package = interop("sentence_transformers")
  base = AlbertSentenceEncoder.from_pretrained(run)
  task = TaskSpec(
    kind="sentence_vectors", name="s", pooling=pooling, normalize=normalize, max_seq_length=12
  )
  tiny_run.write_fine_tuned_run(tmp_path / "run", task, base.config, base.preprocessor.tokenizer)
  convert(str(tmp_path / "run"), str(tmp_path / "hf"), ConvertOptions(output_format="huggingface"))
  ours, theirs = (
    AlbertSentenceEncoder.from_pretrained(str(tmp_path / "run")),
    package.SentenceTransformer(str(tmp_path / "hf"), device="cpu"),
  )
  texts = [*TEXTS, " ".join(TEXTS * 3)]  # The last one is cut.
  np.testing.assert_allclose(theirs.encode(texts), ours.encode(texts), atol=1e-5)
