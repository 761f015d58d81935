import keras
import keras_hub

texts, labels = ["A lite BERT.", "Parameters are shared."], [0, 1]
model = keras_hub.models.AlbertTextClassifier.from_preset("run/", num_classes=2)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(2e-5), loss=loss, metrics=["accuracy"])
model.fit(texts, labels)
# Trained.
print(model.predict(["a text"]))
