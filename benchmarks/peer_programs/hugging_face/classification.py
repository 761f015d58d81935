from transformers import (
  AutoModelForSequenceClassification,
  AutoTokenizer,
  Trainer,
  TrainingArguments,
  pipeline,
)

texts, labels = ["A lite BERT.", "Parameters are shared."], [0, 1]
tokenizer = AutoTokenizer.from_pretrained("run/")
model = AutoModelForSequenceClassification.from_pretrained("run/", num_labels=2)
tokens = tokenizer(texts, truncation=True)["input_ids"]
examples = [{"input_ids": ids, "label": label} for ids, label in zip(tokens, labels, strict=True)]
settings = TrainingArguments("out", learning_rate=2e-5, per_device_train_batch_size=32, num_train_epochs=1)
trainer = Trainer(model, settings, train_dataset=examples, processing_class=tokenizer)
trainer.train()
# Trained.
print(pipeline("text-classification", model=model, tokenizer=tokenizer)(["a text"]))
