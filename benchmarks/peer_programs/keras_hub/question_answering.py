import json

import keras
import keras_hub
import numpy as np

backbone = keras_hub.models.AlbertBackbone.from_preset("run/")
tokenizer = keras_hub.models.AlbertTokenizer.from_preset("run/")
ends = {"start_value": tokenizer.cls_token_id, "end_value": tokenizer.sep_token_id}
packer = keras_hub.layers.MultiSegmentPacker(384, **ends, truncate="waterfall")
logits = keras.layers.Dense(2)(backbone.output["sequence_output"])
model = keras.Model(backbone.input, keras.ops.transpose(logits, [0, 2, 1]))


def features(questions, contexts):
  ids, segments = packer((tokenizer(questions), tokenizer(contexts)))
  return {"token_ids": ids, "segment_ids": segments, "padding_mask": ids != 0}


def rows(path):
  with open(path, encoding="utf-8") as stream:
    for article in json.load(stream)["data"]:
      for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
          yield question, paragraph["context"]


questions, contexts, spans = [], [], []
for question, context in rows("train-v2.0.json"):
  first = last = 0
  if question["answers"]:
    answer = question["answers"][0]
    before = context[: answer["answer_start"]].rstrip()
    prefix = 2 + len(tokenizer(question["question"]))
    first = prefix + len(tokenizer(before))
    last = prefix + len(tokenizer(f"{before} {answer['text']}".strip())) - 1
  inside = last < 383
  questions.append(question["question"])
  contexts.append(context)
  spans.append([first, last] if inside else [0, 0])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(3e-5), loss=loss)
model.fit(features(questions, contexts), np.array(spans), batch_size=8)
# Trained.
for question, context in rows("questions.json"):
  inputs = features([question["question"]], [context])
  starts, stops = model.predict(inputs)[0]
  inside = np.array(inputs["segment_ids"])[0] == 1
  best, span = -np.inf, (0, 0)
  for first in np.flatnonzero(inside):
    for last in range(first, min(first + 30, len(stops))):
      if inside[last] and starts[first] + stops[last] > best:
        best, span = starts[first] + stops[last], (first, last + 1)
  print(tokenizer.detokenize(np.array(inputs["token_ids"])[0, span[0] : span[1]]))
