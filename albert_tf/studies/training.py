"""Studies of what a model learns from, and for how long (ALBERT, arXiv 1909.11942); with the paper's figures.

"average" is that of five tasks: SQuAD 1.1 and 2.0, MNLI, SST-2, RACE.
"""

from albert_tf.studies.study import (
  HALF,
  NSP,
  ORDERED,
  SENTENCE_ACCURACY,
  SHARED,
  SOP,
  UNSHARED,
  Speed,
  Study,
  arm,
)

SENTENCE_LOSS = Study(
  name="sentence_loss",
  title="Sentence loss",
  paper="table 5",
  question="What does a model learn from sentence order that it does not learn from next sentence?",
  columns=(
    "parameters",
    "masked_lm_accuracy@ordered",
    "next_sentence_accuracy@nsp",
    "sentence_order_accuracy@sop",
  ),
  metrics=("next_sentence_accuracy@nsp", "sentence_order_accuracy@sop"),
  probes=(ORDERED, NSP, SOP),
  arms=(
    # Of a few thousand updates a sentence loss takes most for itself; so on a laptop all arms begin beyond the plateau.
    arm("start", "", "--num_train_steps=6000 --num_warmup_steps=400 --learning_rate=0.005", data=ORDERED,
         laptop_title="where the others start", scales=("laptop",)),
    arm("none", "none", "", data=ORDERED, after="start",
         paper={"masked LM": 54.9, "NSP": 52.4, "SOP": 53.3, "average": 79.0}),
    arm("nsp", "NSP", "", data=NSP, after="start",
         paper={"masked LM": 54.5, "NSP": 90.5, "SOP": 52.0, "average": 79.2}),
    arm("sop", "SOP", "", data=SOP, after="start",
         paper={"masked LM": 54.0, "NSP": 78.9, "SOP": 86.5, "average": 80.1}),
  ),
)  # fmt: skip

EQUAL_TIME = Study(
  name="equal_time",
  title="The same time",
  paper="table 6",
  question="Which is better after the same hours: a deep model that is fast, or a wide one that is slow?",
  columns=("parameters", "steps", "hours", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY),
  # How many updates fit into the other arm's hours must be known before the rate can decay over them.
  speed=Speed(flags=("--num_train_steps=60", "--num_warmup_steps=1", "--iterations_per_loop=20")),
  arms=(
    arm("bert_large", "BERT large, 400,000 steps", "--size=bert_large --num_train_steps=400000",
         "--num_hidden_layers=4 --hidden_size=64 --num_attention_heads=4 --intermediate_size=256 "
         f"--embedding_size=64 {UNSHARED}",
         laptop_title="four layers of 64, not shared", paper={"hours": 34, "average": 87.2}),
    arm("xxlarge", "ALBERT xxlarge, as long", "--size=xxlarge_v1",
         "--num_hidden_layers=2 --hidden_size=256 --num_attention_heads=16 --intermediate_size=1024 "
         f"--embedding_size=32 {SHARED}",
         laptop_title="two layers of 256, shared, as long",
         time_of="bert_large", paper={"hours": 32, "average": 88.7}),
  ),
)  # fmt: skip

MORE_DATA = Study(
  name="more_data",
  title="More data",
  paper="table 7, figure 2a",
  question="Does more text help at the same number of updates? Half of the files of the text against all of them.",
  eval_data=HALF,
  curves=(("eval", "masked_lm_accuracy"),),
  metrics=("masked_lm_accuracy",),
  arms=(
    arm("half", "half of the text", "", data=HALF, paper={"average": 80.1}),
    arm("all", "all of the text", "", paper={"average": 80.8}),
  ),
)

DROPOUT = Study(
  name="dropout",
  title="Dropout",
  paper="table 8, figure 2b",
  question="Does a model that has not yet fitted its text gain from training without dropout?",
  curves=(("eval", "masked_lm_accuracy"), ("train", "masked_lm_accuracy")),
  columns=("parameters", "train_masked_lm_accuracy", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY),
  metrics=("masked_lm_accuracy",),
  arms=(
    arm("with", "with dropout, 0.1", "--hidden_dropout_prob=0.1 --attention_probs_dropout_prob=0.1",
        paper={"average": 90.4}),
    arm("without", "without", "--hidden_dropout_prob=0 --attention_probs_dropout_prob=0",
        paper={"average": 90.7}),
  ),
)  # fmt: skip

LEARNING_CURVES = Study(
  name="learning_curves",
  title="Learning curves",
  paper="figure 2",
  question="How do these runs compare, update by update?",
  columns=("parameters", "steps", "train_masked_lm_loss", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY),
  curves=(("eval", "masked_lm_accuracy"), ("train", "masked_lm_accuracy")),
  metrics=("masked_lm_accuracy",),
  fine_tuned=False,
  arms=(),
)  # fmt: skip
