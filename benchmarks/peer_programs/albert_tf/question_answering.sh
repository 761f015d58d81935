python tpu_scripts/run_squad.py --flagfile=recipes/squad2.flags --train_file=train-v2.0.json --init_checkpoint=run \
  --output_dir=squad2 --num_train_steps=4 --num_warmup_steps=1 --train_batch_size=8
# Trained.
python tpu_scripts/run_squad.py --do_predict --predict_file=questions.json --init_checkpoint=squad2 --output_dir=answers
cat answers/predictions.json
