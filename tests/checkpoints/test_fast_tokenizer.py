"""The `tokenizer.json` of an output for Hugging Face, read by Hugging Face's own libraries."""

import json
import pathlib

import pytest
from reference.tokenization import batch
from support.goldens import SPM_MODEL
from support.stacks import interop
from support.tiny_corpus import trained_model
import tokenizers

from albert_tf.checkpoints.fast_tokenizer import tokenizer_config, tokenizer_json
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.tokenization import load_tokenizer
from albert_tf.tokenization.config import TokenizerConfig, WordPieceConfig, find_tokenizer
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
  values = tokenizer_config(settings, tokenizer_class="PreTrainedTokenizerFast")
  (folder / "tokenizer_config.json").write_text(json.dumps(values))
  config = AlbertConfig.from_name("base").to_huggingface_dict()
  (folder / "config.json").write_text(json.dumps(config))


def assert_is(tokenizer, expected):
  assert tokenizer.config == expected.config
  assert tokenizer.pieces == expected.pieces
  assert tokenizer.encode_batch(ODD_LINES) == expected.encode_batch(ODD_LINES)


# Share of lines with other ids: with a small vocabulary, more numbers before a comma are cut otherwise.
@pytest.mark.parametrize(
  ("name", "most"), [("data/vocab/30k-clean.model", 1e-4), (SPM_MODEL, 5e-3)], ids=["30k", "8k"]
)
def test_transformers_gives_our_ids(name, most, shared_dir, tmp_path):
  transformers = interop("transformers")
  model = (shared_dir / name).read_bytes()  # An absolute path stays itself.
  corpora = shared_dir / "data/corpora"
  lines = []
  for text in (*corpora.rglob("*.txt"), corpora / "wikiextractor/wiki_00"):
    lines += text.read_text(errors="replace").splitlines()[:1500]
  lines = [line for line in lines if "<unk>" not in line]  # A special piece is theirs to read.
  assert len(lines) > 10_000
  for number, settings in enumerate(SETTINGS):
    folder = tmp_path / str(number)
    write_folder(folder, model, settings)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = AlbertTokenizer(model, settings)
    odd = theirs(list(ODD_LINES), add_special_tokens=False)["input_ids"]
    assert odd == ours.encode_batch(ODD_LINES)
    their_ids = theirs(lines, add_special_tokens=False)["input_ids"]
    pairs = zip(their_ids, ours.encode_batch(lines), strict=True)
    assert sum(a != b for a, b in pairs) <= most * len(lines), settings
    pair = theirs("one", "two", padding="max_length", max_length=9)
    packed = batch(ours, ["one"], ["two"], max_length=9, pad_to_max_length=True)
    names = {"token_type_ids": "segment_ids", "attention_mask": "input_mask"}
    for key in pair:
      assert pair[key] == packed[names.get(key, key)][0].tolist()
    assert theirs("a [MASK] b")["input_ids"][2] == ours.mask_id == theirs.mask_token_id


@pytest.mark.parametrize(
  "settings", [*SETTINGS, TokenizerConfig(do_lower_case=False, keep_accents=True)]
)
def test_a_folder_has_its_tokenizer_also_with_tokenizer_json_alone(settings, tmp_path):
  folder, model = tmp_path / "model", pathlib.Path(SPM_MODEL).read_bytes()
  write_folder(folder, model, settings)
  assert find_tokenizer(str(folder))[1] == settings
  (folder / "spiece.model").unlink()
  assert_is(load_tokenizer(str(folder)), AlbertTokenizer(model, settings))


def test_a_vocabulary_that_spells_unknown_characters_in_bytes(tmp_path):
  sentences = ["small birds sing by the sea"] * 20
  model = trained_model(sentences, vocab_size=300, byte_fallback=True)
  write_folder(tmp_path / "model", model, TokenizerConfig())
  ours = AlbertTokenizer(model, TokenizerConfig())
  lines = ["the sea \U0001f600\U0001f600 sings", "中文 birds"]
  assert ours.unk_id not in ours.encode(lines[0])
  theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "model/tokenizer.json"))
  found = [theirs.encode(line, add_special_tokens=False).ids for line in lines]
  assert found == ours.encode_batch(lines)
  (tmp_path / "model/spiece.model").unlink()
  assert load_tokenizer(str(tmp_path / "model")).encode_batch(lines) == found


@pytest.mark.parametrize(
  "changes",
  [
    {"model": {"type": "BPE", "vocab": {}, "merges": []}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x"}]}},
    {"normalizer": None},
    {"added_tokens": None},
    {"model": {"type": "Unigram", "unk_id": 1, "vocab": [["<pad>", "0"]]}},
  ],
)
def test_a_tokenizer_json_that_says_something_else_is_refused(changes, tmp_path):
  write_folder(tmp_path / "model", pathlib.Path(SPM_MODEL).read_bytes(), TokenizerConfig())
  (tmp_path / "model/spiece.model").unlink()
  file = tmp_path / "model/tokenizer.json"
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))
  with pytest.raises(UserError, match=r"Received: .*/tokenizer\.json "):
    load_tokenizer(str(tmp_path / "model"))


def test_tokenizers_that_transformers_saves_are_read(tmp_path):
  """Transformers 5 writes only tokenizer.json, whichever of its classes has read the folder."""
  transformers = interop("transformers")
  model = pathlib.Path(SPM_MODEL).read_bytes()
  for name, theirs in (
    ("general", TokenizerConfig()),
    ("albert", TokenizerConfig(normalize_quotes=True)),
  ):
    write_folder(tmp_path / name, model, theirs)
    if name == "albert":  # As on Hugging Face's hub, where their own class makes its rules.
      for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name / file).unlink()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / name))
    tokenizer.save_pretrained(tmp_path / "saved" / name)
    assert not (tmp_path / "saved" / name / "spiece.model").exists()
    assert_is(load_tokenizer(str(tmp_path / "saved" / name)), AlbertTokenizer(model, theirs))

  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sky", "##s", "Is"]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces))
  bert = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False)
  bert.save_pretrained(tmp_path / "bert")
  assert not (tmp_path / "bert/vocab.txt").exists()
  again = load_tokenizer(str(tmp_path / "bert"))
  assert again.config == WordPieceConfig(do_lower_case=False)
  assert again.encode_pieces("the skys Is") == ["the", "sky", "##s", "Is"]
