import json

import torch
from transformers import (
  AutoModelForQuestionAnswering,
  AutoTokenizer,
  Trainer,
  TrainingArguments,
  default_data_collator,
)

tokenizer = AutoTokenizer.from_pretrained("run/")
model = AutoModelForQuestionAnswering.from_pretrained("run/")


def windows(question, context):
  sizes = {"max_length": 384, "stride": 128, "padding": "max_length", "truncation": "only_second"}
  options = {"return_overflowing_tokens": True, "return_offsets_mapping": True, "return_token_type_ids": True}
  batch = tokenizer(question, context, **sizes, **options)
  for number, offsets in enumerate(batch["offset_mapping"]):
    keys = ("input_ids", "attention_mask", "token_type_ids")
    places = [
      place if sequence == 1 else None
      for place, sequence in zip(offsets, batch.sequence_ids(number), strict=True)
    ]
    yield {key: batch[key][number] for key in keys}, places


examples = []
with open("train-v2.0.json", encoding="utf-8") as stream:
  articles = json.load(stream)["data"]
for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
  for question in paragraph["qas"]:
    answer = question["answers"][0] if question["answers"] else {"answer_start": -1, "text": ""}
    start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    for features, places in windows(question["question"], paragraph["context"]):
      first = [n for n, place in enumerate(places) if place and place[0] <= start < place[1]]
      last = [n for n, place in enumerate(places) if place and place[0] < end <= place[1]]
      found = first and last
      positions = {
        "start_positions": first[0] if found else 0,
        "end_positions": last[0] if found else 0,
      }
      examples.append({**features, **positions})
settings = TrainingArguments("out", learning_rate=3e-5, per_device_train_batch_size=8, max_steps=4)
Trainer(model, settings, train_dataset=examples, data_collator=default_data_collator).train()
# Trained.


def answer(question, context):
  best, text = float("-inf"), ""
  for features, places in windows(question, context):
    with torch.no_grad():
      outputs = model.eval()(**{key: torch.tensor([value]) for key, value in features.items()})
    starts, ends = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
    for first in (n for n, place in enumerate(places) if place):
      for last in range(first, min(first + 30, len(places))):
        if places[last] and starts[first] + ends[last] > best:
          best, text = starts[first] + ends[last], context[places[first][0] : places[last][1]]
  return text


with open("questions.json", encoding="utf-8") as stream:
  articles = json.load(stream)["data"]
for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
  for question in paragraph["qas"]:
    print(answer(question["question"], paragraph["context"]))
