python -m official.nlp.data.create_finetuning_data --fine_tuning_task_type=squad --squad_data_file=train-v2.0.json \
  --tokenization=SentencePiece --sp_model_file=spm.model --version_2_with_negative --max_seq_length=384 \
  --train_data_output_path=train.tfrecord --meta_data_file_path=meta.json
python -m official.nlp.train --experiment=bert/squad --mode=train --model_dir=out --config_file=question_answering.yaml
# Trained.
python question_answering_answers.py
