"""The same few sentences in several languages, and a vocabulary of them, for tests beyond English."""

import pathlib
import random
from typing import Any

from tfrecords_tools import vocabulary
from tfrecords_tools.corpus import CorpusOptions, CorpusStats

TEXTS = {
  "German": "Über den Flüssen von Köln weht größere Wärme; Straßen führen nach Süden. Die Häuser grüßen schön.",
  "French": "L'été dernier, Zoé a goûté des pâtes à la crème où naît l'Isère. Ça va être très drôle, Noël!",
  "Turkish": "İstanbul'da Işık çok güzeldi; ağaçlar yeşil, gökyüzü açıktı. Şimdi ılık bir rüzgâr esiyor.",
  "Vietnamese": "Tiếng Việt có nhiều dấu thanh. Hà Nội là thủ đô của nước Việt Nam, và người dân rất thân thiện.",
  "Chinese": "今天的天气很好。我们去公园散步、看见许多花和树。中国的首都是北京。",
  "Russian": "Сегодня хорошая погода, и мы гуляем в парке. Москва является столицей России. Ёлка ещё зелёная.",
  "Arabic": "الطقس جميل اليوم، ونحن نمشي في الحديقة. القاهرة هي عاصمة مصر، وآخر الأنباء جيدة.",
}


def sentences(language: str, count: int) -> list[str]:
  """Words of the language's text in random order; of Chinese, cuts of the text."""
  rng, text = random.Random(language), TEXTS[language]
  space = " " if " " in text else ""
  words = text.split() if space else [text[start : start + 3] for start in range(len(text) - 2)]
  return [space.join(rng.choices(words, k=rng.randint(4, 12))) for _ in range(count)]


def train_model(path: pathlib.Path, *, vocab_size: int = 330, **choices: Any) -> str:
  """Trains a vocabulary of all the texts and writes it with its settings; `choices` are of `VocabularySpec`."""
  spec = vocabulary.VocabularySpec(vocab_size=vocab_size, **choices)
  raw = [sentence for language in TEXTS for sentence in [TEXTS[language], *sentences(language, 80)]]
  text = path.with_suffix(".txt")
  text.write_text("\n".join(raw), encoding="utf-8")
  prefix, options = str(path.with_suffix("")), CorpusOptions(input_format="lines")
  vocabulary.make([str(text)], options, spec, model_prefix=prefix, stats=CorpusStats())
  return str(path)
