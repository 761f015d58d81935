"""The model against Hugging Face's own ALBERT, run from its package on random weights of base size."""

import warnings

import numpy as np
import pytest
from support.synthetic_checkpoint import CONFIG, random_variables, write_tf1
import tensorflow as tf

from albert_tf.checkpoints import ConvertOptions, convert, load_weights, read_checkpoint
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.models.tasks import AlbertClassifier, AlbertMultipleChoice, AlbertQuestionAnswering

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def hugging_face():
  pytest.importorskip("torch", reason="needs requirements/interop.txt (torch, transformers)")
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    return pytest.importorskip("transformers", reason="needs requirements/interop.txt (torch, transformers)")


def batch(vocab_size, rng):
  ids = rng.integers(5, vocab_size, size=(2, 37))
  mask = np.ones_like(ids)
  mask[1, 29:] = 0
  segments = np.zeros_like(ids)
  segments[:, 17:] = 1
  return ids, mask, segments


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_exact"])
def test_hidden_states_and_heads(hidden_act, hugging_face, tmp_path):
  """Their weights into ours, and ours back into theirs; every layer and both heads agree."""
  import torch

  config = AlbertConfig.from_name("base", hidden_act=hidden_act, num_hidden_groups=2)
  theirs_config = hugging_face.AlbertConfig.from_dict(config.to_huggingface_dict())
  torch.manual_seed(0)
  theirs = hugging_face.AlbertForPreTraining(theirs_config).eval()
  with torch.no_grad():
    for parameter in theirs.parameters():  # Fresh biases are zero: noise shows a swapped one.
      parameter.add_(0.02 * torch.randn_like(parameter))
  theirs.save_pretrained(tmp_path / "theirs")
  checkpoint = read_checkpoint(str(tmp_path / "theirs"))
  assert checkpoint.config == config
  ours = AlbertForPreTraining(config)
  load_weights(ours, checkpoint)

  ids, mask, segments = batch(config.vocab_size, np.random.default_rng(0))
  outputs = ours(
    {
      "input_ids": tf.constant(ids, tf.int32),
      "input_mask": tf.constant(mask, tf.int32),
      "segment_ids": tf.constant(segments, tf.int32),
      "masked_lm_positions": tf.tile(tf.range(37)[tf.newaxis], [2, 1]),
    }
  )

  def check(model):
    with torch.no_grad():
      want = model(
        input_ids=torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        token_type_ids=torch.tensor(segments),
        output_hidden_states=True,
      )
    real = mask.astype(bool)  # Padded positions attend under another large number; nothing reads them.
    layers = [state.numpy()[real] for state in want.hidden_states[1:]]
    got = [layer.numpy()[real] for layer in outputs["all_encoder_layers"]]
    assert len(got) == len(layers) == 12
    for ours_layer, theirs_layer in zip(got, layers, strict=True):
      np.testing.assert_allclose(ours_layer, theirs_layer, atol=TOLERANCE)
    logits = want.prediction_logits.numpy()[real]
    np.testing.assert_allclose(outputs["mlm_logits"].numpy()[real], logits, atol=TOLERANCE)
    np.testing.assert_allclose(outputs["sop_logits"], want.sop_logits.numpy(), atol=TOLERANCE)

  check(theirs)
  convert(str(tmp_path / "theirs"), str(tmp_path / "run"), ConvertOptions())
  convert(str(tmp_path / "run"), str(tmp_path / "back"), ConvertOptions(output_format="huggingface"))
  again, info = hugging_face.AlbertForPreTraining.from_pretrained(tmp_path / "back", output_loading_info=True)
  assert not list(info["missing_keys"]) + list(info["unexpected_keys"])
  for name, value in theirs.state_dict().items():
    assert torch.equal(again.state_dict()[name], value), name
  check(again.eval())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
  ("head", "labels", "ours_class", "task", "theirs_name", "shape"),
  [
    ("classifier", 5, AlbertClassifier, {"num_labels": 5}, "AlbertForSequenceClassification", (2, 7)),
    ("classifier", 1, AlbertMultipleChoice, {}, "AlbertForMultipleChoice", (2, 3, 7)),
    ("span", 2, AlbertQuestionAnswering, {"squad_version": "1.1"}, "AlbertForQuestionAnswering", (2, 7)),
  ],
)
def test_fine_tuned_heads(head, labels, ours_class, task, theirs_name, shape, hugging_face, tmp_path):
  """A fine-tuned model of ours, read by their class, gives the same logits."""
  import torch

  variables = random_variables(CONFIG, (head,), num_labels=labels)
  path = write_tf1(tmp_path / "a", CONFIG, variables)
  ours = ours_class(CONFIG, task=ours_class.make_task(**task))
  load_weights(ours, path)
  convert(path, str(tmp_path / "b"), ConvertOptions(output_format="huggingface"))
  theirs, info = getattr(hugging_face, theirs_name).from_pretrained(tmp_path / "b", output_loading_info=True)
  assert not list(info["missing_keys"])
  ids = np.random.default_rng(0).integers(0, CONFIG.vocab_size, size=shape)
  got = ours({"input_ids": tf.constant(ids, tf.int32)})
  with torch.no_grad():
    want = theirs.eval()(input_ids=torch.tensor(ids))
  for key in ("start_logits", "end_logits") if head == "span" else ("logits",):
    np.testing.assert_allclose(got[key] if head == "span" else got, want[key].numpy(), atol=TOLERANCE)
