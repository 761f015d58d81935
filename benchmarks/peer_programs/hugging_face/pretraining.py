import glob
from itertools import chain
import random

from transformers import (
  AlbertConfig,
  AlbertForPreTraining,
  AlbertTokenizer,
  DataCollatorForLanguageModeling,
  Trainer,
  TrainingArguments,
)

tokenizer = AlbertTokenizer.from_pretrained("run/")
length, generator = 128, random.Random(12345)
examples = []
for path in sorted(glob.glob("corpus/*.txt")):
  with open(path, encoding="utf-8") as stream:
    documents = stream.read().split("\n\n")
  for document in documents:
    sentences = document.splitlines()
    if not sentences:
      continue
    chunk = []
    for number, ids in enumerate(tokenizer(sentences, add_special_tokens=False)["input_ids"]):
      chunk.append(ids)
      if sum(map(len, chunk)) < length - 3 and number + 1 < len(sentences):
        continue
      if len(chunk) > 1:
        cut = generator.randrange(1, len(chunk))
        first, second = list(chain(*chunk[:cut])), list(chain(*chunk[cut:]))
        while len(first) + len(second) > length - 3:
          (first if len(first) > len(second) else second).pop()
        label = generator.randrange(2)
        if label:
          first, second = second, first
        cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        example = {"input_ids": cls + first + sep + second + sep, "token_type_ids": segments}
        examples.append({**example, "sentence_order_label": label})
      chunk = []
generator.shuffle(examples)
model = AlbertForPreTraining(AlbertConfig.from_pretrained("run/"))
settings = TrainingArguments("out", learning_rate=1e-3, per_device_train_batch_size=16, max_steps=20)
collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
Trainer(model, settings, train_dataset=examples, data_collator=collator).train()
# Trained.
model.save_pretrained("out/checkpoint")
tokenizer.save_pretrained("out/checkpoint")
