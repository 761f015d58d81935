from official.nlp.configs import finetuning_experiments
from official.nlp.tasks import question_answering
import tensorflow as tf
import yaml

params = finetuning_experiments.bert_squad()
with open("question_answering.yaml", encoding="utf-8") as stream:
  params.override(yaml.safe_load(stream))
task = question_answering.QuestionAnsweringTask(params.task, logging_dir="out")
model = task.build_model()
tf.train.Checkpoint(model=model).restore(tf.train.latest_checkpoint("out")).expect_partial()
print(question_answering.predict(task, params.task.validation_data, model)[0])
