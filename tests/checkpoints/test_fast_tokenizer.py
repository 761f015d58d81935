"""The `tokenizer.json` of an output for Hugging Face, read by Hugging Face's own libraries."""

import json
import pathlib

import pytest
from reference.tokenization import batch
from support.goldens import SPM_MODEL
from support.stacks import interop

from albert_tf.checkpoints.fast_tokenizer import tokenizer_config_json, tokenizer_json
from albert_tf.configs import AlbertConfig
from albert_tf.tokenization.config import TokenizerConfig, find_tokenizer
from albert_tf.tokenization.tokenizer import AlbertTokenizer

# White space, accents, a ligature, final sigmas, other scripts, numbers before commas, unknown characters.
ODD_LINES = (
  "  Café\u00a0 ﬁve\t½ ``so''  ΟΔΟΣ, Σ ",
  "中文 и русский \U0001f600\U0001f600 x",
  "In 1990, (a)-b – £5 €6 -- ...",
  "",
  " ",
)
SETTINGS = (
  TokenizerConfig(),
  TokenizerConfig(normalize_quotes=True),
  TokenizerConfig(do_lower_case=False),
)


def write_folder(folder, model, settings):
  folder.mkdir()
  (folder / "spiece.model").write_bytes(model)
  (folder / "tokenizer.json").write_text(tokenizer_json(model, settings), encoding="utf-8")
  text = tokenizer_config_json(settings, tokenizer_class="PreTrainedTokenizerFast")
  (folder / "tokenizer_config.json").write_text(text)
  config = AlbertConfig.from_name("base").to_huggingface_dict()
  (folder / "config.json").write_text(json.dumps(config))


# Share of lines with other ids: with a small vocabulary, more numbers before a comma are cut otherwise.
@pytest.mark.parametrize(
  ("name", "most"), [("data/vocab/30k-clean.model", 1e-4), (SPM_MODEL, 5e-3)], ids=["30k", "8k"]
)
def test_transformers_gives_our_ids(name, most, shared_dir, tmp_path):
  transformers = interop("transformers")
  model = (shared_dir / name).read_bytes()  # An absolute path stays itself.
  texts = [*(shared_dir / "data/corpora").rglob("*.txt"), shared_dir / "data/corpora/wikiextractor/wiki_00"]
  lines = [line for text in texts for line in text.read_text(errors="replace").splitlines()[:1500]]
  lines = [line for line in lines if "<unk>" not in line]  # A special piece in text is theirs to read.
  assert len(lines) > 10_000
  for number, settings in enumerate(SETTINGS):
    folder = tmp_path / str(number)
    write_folder(folder, model, settings)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = AlbertTokenizer(model, settings)
    assert theirs(list(ODD_LINES), add_special_tokens=False)["input_ids"] == ours.encode_batch(ODD_LINES)
    pairs = zip(theirs(lines, add_special_tokens=False)["input_ids"], ours.encode_batch(lines), strict=True)
    assert sum(a != b for a, b in pairs) <= most * len(lines), settings
    pair = theirs("one", "two", padding="max_length", max_length=9)
    packed = batch(ours, ["one"], ["two"], max_length=9, pad_to_max_length=True)
    for key, name in (
      ("input_ids", "input_ids"),
      ("token_type_ids", "segment_ids"),
      ("attention_mask", "input_mask"),
    ):
      assert pair[key] == packed[name][0].tolist()
    assert theirs("a [MASK] b")["input_ids"][2] == ours.mask_id == theirs.mask_token_id


@pytest.mark.parametrize("settings", [*SETTINGS, TokenizerConfig(do_lower_case=False, keep_accents=True)])
def test_our_settings_come_back_from_their_folder(settings, tmp_path):
  write_folder(tmp_path / "model", pathlib.Path(SPM_MODEL).read_bytes(), settings)
  assert find_tokenizer(str(tmp_path / "model"))[1] == settings
