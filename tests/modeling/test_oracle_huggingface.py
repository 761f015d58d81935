"""The model against Hugging Face's own ALBERT, run from its package on random weights of base size."""

import numpy as np
import pytest
from support.stacks import interop
from support.synthetic_checkpoint import CONFIG, random_variables, write_tf1
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import load_weights, read_checkpoint
from albert_tf.checkpoints.convert import convert
from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.configs import AlbertConfig
from albert_tf.keras_api.tasks import AlbertMultipleChoice
from albert_tf.modeling import AlbertForPreTraining

TOLERANCE = 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_exact"])
def test_hidden_states_and_heads(hidden_act, tmp_path):
  """Weights are converted in both directions; outputs of every layer and both heads are equal."""
  torch, transformers = interop("torch"), interop("transformers")
  config = AlbertConfig.from_name("base", hidden_act=hidden_act, num_hidden_groups=2)
  theirs_config = transformers.AlbertConfig.from_dict(config.to_huggingface_dict())
  torch.manual_seed(0)
  theirs = transformers.AlbertForPreTraining(theirs_config).eval()
  with torch.no_grad():
    for parameter in theirs.parameters():  # Fresh biases are zero: noise shows a swapped one.
      parameter.add_(0.02 * torch.randn_like(parameter))
  theirs.save_pretrained(tmp_path / "theirs")
  checkpoint = read_checkpoint(str(tmp_path / "theirs"))
  assert checkpoint.config == config
  ours = AlbertForPreTraining(config)
  load_weights(ours, checkpoint)

  ids = np.random.default_rng(0).integers(5, config.vocab_size, size=(2, 37))
  mask = np.ones_like(ids)
  mask[1, 29:] = 0
  segments = np.zeros_like(ids)
  segments[:, 17:] = 1
  positions = np.tile(np.arange(37), [2, 1])
  outputs = ours(
    {
      "input_ids": ids,
      "input_mask": mask,
      "segment_ids": segments,
      "masked_lm_positions": positions,
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
    # Padded positions attend under another large number; nothing reads them.
    real = mask.astype(bool)
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
  to_theirs = ConvertOptions(output_format="huggingface")
  convert(str(tmp_path / "run"), str(tmp_path / "back"), to_theirs)
  again, info = transformers.AlbertForPreTraining.from_pretrained(
    tmp_path / "back", output_loading_info=True
  )
  assert not list(info["missing_keys"]) + list(info["unexpected_keys"])
  for name, value in theirs.state_dict().items():
    assert torch.equal(again.state_dict()[name], value), name
  check(again.eval())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_multiple_choice(tmp_path):
  """For the other heads see test_pipelines.py."""
  torch, transformers = interop("torch"), interop("transformers")
  path = write_tf1(tmp_path / "a", CONFIG, random_variables(CONFIG, ("classifier",), num_labels=1))
  ours = AlbertMultipleChoice(CONFIG)
  load_weights(ours, path)
  convert(path, str(tmp_path / "b"), ConvertOptions(output_format="huggingface"))
  theirs = transformers.AlbertForMultipleChoice.from_pretrained(tmp_path / "b")
  ids = np.random.default_rng(0).integers(0, CONFIG.vocab_size, size=(2, 3, 7))
  with torch.no_grad():
    want = theirs.eval()(input_ids=torch.tensor(ids)).logits.numpy()
  np.testing.assert_allclose(ours({"input_ids": tf.constant(ids, tf.int32)}), want, atol=TOLERANCE)
