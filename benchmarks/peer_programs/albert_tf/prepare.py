"""A tiny model with random weights, as a run directory and as a Hugging Face folder: run/ and hugging_face/."""

import pathlib

from albert_tf.checkpoints import ConvertOptions, convert
from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.tokenization import AlbertTokenizer

tokenizer = AlbertTokenizer(spm_model_file="spm.model")
sizes = {"embedding_size": 128, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
config = AlbertConfig.from_name("tiny", vocab_size=tokenizer.vocab_size, intermediate_size=512, **sizes)
variables = named_variables(AlbertForPreTraining(config))
pathlib.Path("run/checkpoints").mkdir(parents=True)
pathlib.Path("run/albert_config.json").write_text(config.to_json_string(), encoding="utf-8")
tokenizer.save_pretrained("run")
write_bundle("run/checkpoints/model.ckpt-0", {name: value.numpy() for name, value in variables.items()})
convert("run", "hugging_face", ConvertOptions(output_format="huggingface"))
