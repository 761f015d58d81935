import tensorflow as tf
import tensorflow_models as tfm
import tf_keras

texts, labels = ["A lite BERT.", "Parameters are shared."], [0, 1]
settings = {"vocab_size": 8000, "embedding_width": 128, "hidden_size": 128, "num_layers": 2}
settings |= {"num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 512}
encoder = tfm.nlp.encoders.build_encoder(tfm.nlp.encoders.EncoderConfig(type="albert", albert=settings))
tf.train.Checkpoint(encoder=encoder).read("run/encoder").assert_existing_objects_matched()
tokenizer = tfm.nlp.layers.SentencepieceTokenizer(
  model_file_path="spm.model", lower_case=True, strip_diacritics=True
)
packer = tfm.nlp.layers.BertPackInputs(
  512, special_tokens_dict=tokenizer.get_special_tokens_dict(), truncator="waterfall"
)
text = tf_keras.Input([], dtype=tf.string)
preprocessor = tf_keras.Model(text, packer(tokenizer(text)))
model = tfm.nlp.models.BertClassifier(encoder, num_classes=2)
loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf_keras.optimizers.AdamW(2e-5), loss=loss, metrics=["accuracy"])
model.fit(preprocessor(tf.constant(texts)), tf.constant(labels))
# Trained.
print(model.predict(preprocessor(tf.constant(["a text"]))))
