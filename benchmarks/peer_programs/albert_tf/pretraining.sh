python tfrecords_tools/create_pretraining_data.py --input 'corpus/*.txt' --spm_model_file run/spm.model \
  --output_dir records --max_seq_length 128 --max_predictions_per_seq 20 --eval_fraction 0.02
python tpu_scripts/run_pretrain.py --albert_config_file=run/albert_config.json --optimizer=lamb --learning_rate=0.003 \
  --input_file='records/train-*' --eval_input_file='records/eval-*' --output_dir=out --num_train_steps=20 \
  --num_warmup_steps=2 --train_batch_size=16 --iterations_per_loop=10 --save_checkpoints_steps=20
# Trained.
