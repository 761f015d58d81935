import keras

from albert_tf import AdamW, AlbertClassifier

texts, labels = ["A lite BERT.", "Parameters are shared."], [0, 1]
model = AlbertClassifier.from_pretrained("run/", num_labels=2)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(AdamW(2e-5), loss=loss, metrics=["accuracy"])
model.fit(texts, labels)
# Trained.
print(model.predict(["a text"]))
