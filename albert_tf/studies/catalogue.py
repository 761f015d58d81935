"""Every study of the ALBERT paper (arXiv 1909.11942) as data: its arms at two scales, and the paper's own figures.

What all arms of a study share is in recipes/studies/STUDY/SCALE.flags; here is what sets an arm apart. A laptop's arms
keep the paper's ratios of widths and depths, not its sizes.
The paper's "average" is that of five tasks: SQuAD 1.1 and 2.0, MNLI, SST-2, RACE.
"""

from collections.abc import Mapping

from albert_tf.studies.study import (
  HALF,
  NSP,
  ORDERED,
  SENTENCE_ACCURACY,
  SOP,
  Arm,
  DataKind,
  Speed,
  Study,
  check_name,
)

_PARAMETERS, _AVERAGE = "parameters", "average"
_SHARED, _NOT_SHARED = "--sharing=all", "--sharing=none"


def _arm(
  name: str,
  title: str,
  paper_flags: str,
  laptop_flags: str | None = None,
  *,
  data: DataKind = SOP,
  after: str = "",
  time_of: str = "",
  scales: tuple[str, ...] = ("laptop", "paper"),
  **paper: float | str,
) -> Arm:
  """An arm; on a laptop with the paper's flags unless it has its own. Figures of the paper by heading."""
  flags = {"paper": paper_flags, "laptop": paper_flags if laptop_flags is None else laptop_flags}
  return Arm(
    name=name,
    title=title,
    flags={scale: tuple(flags[scale].split()) for scale in scales},
    data=data,
    after=after,
    time_of=time_of,
    paper={heading.replace("_", " "): figure for heading, figure in paper.items()},
  )


def _laptop_size(hidden: int, layers: int, *, bert: bool = False) -> str:
  """A sixteenth of a width of table 1 and a sixth of its layers; heads of 16, F = 4 H."""
  shape = f"--num_hidden_layers={layers} --num_attention_heads={hidden // 16} --intermediate_size={4 * hidden}"
  embedding = f"--embedding_size={hidden} {_NOT_SHARED}" if bert else "--embedding_size=32"
  return f"--hidden_size={hidden} {shape} {embedding}"


_SIZES = Study(
  name="sizes",
  title="Sizes",
  paper="tables 1 and 2",
  question="What do parameters, width and depth buy, and what do they cost in speed?",
  columns=("parameters", "speedup", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY),
  # The paper's own sizes, whatever is trained: two examples an update fit a laptop too.
  speed=Speed(
    flags=("--train_batch_size=2", "--num_train_steps=3", "--num_warmup_steps=1", "--iterations_per_loop=1"),
    rounds=2,
    scale="paper",
    relative_to="bert_large",
  ),
  seeds={"laptop": (1,), "paper": (1,)},
  arms=(
    _arm("bert_base", "BERT base", "--size=bert_base", _laptop_size(48, 2, bert=True),
         parameters="108M", average=82.3, speed=4.7),
    _arm("bert_large", "BERT large", "--size=bert_large", _laptop_size(64, 4, bert=True),
         parameters="334M", average=85.2, speed=1.0),
    _arm("base", "ALBERT base", "--size=base_v1", _laptop_size(48, 2),
         parameters="12M", average=80.1, speed=5.6),
    _arm("large", "ALBERT large", "--size=large_v1", _laptop_size(64, 4),
         parameters="18M", average=82.4, speed=1.7),
    _arm("xlarge", "ALBERT xlarge", "--size=xlarge_v1", _laptop_size(128, 4),
         parameters="60M", average=85.5, speed=0.6),
    _arm("xxlarge", "ALBERT xxlarge", "--size=xxlarge_v1", _laptop_size(256, 2),
         parameters="235M", average=88.7, speed=0.3),
  ),
)  # fmt: skip

_EMBEDDING = Study(
  name="embedding",
  title="Embedding size",
  paper="table 3",
  question="Does a wider embedding help, with and without shared layers?",
  arms=tuple(
    # H = 768 in the paper, 128 on the laptop: E is a sixteenth, an eighth, a quarter and all of H there.
    _arm(f"{'shared' if sharing == _SHARED else 'not_shared'}_e{size}",
         f"{'all-shared' if sharing == _SHARED else 'not-shared'}, E = {size} ({laptop} on a laptop)",
         f"{sharing} --embedding_size={size}", f"{sharing} --embedding_size={laptop}",
         parameters=parameters, average=average)
    for sharing, size, laptop, parameters, average in (
      (_NOT_SHARED, 64, 8, "87M", 81.3), (_NOT_SHARED, 128, 16, "89M", 81.7),
      (_NOT_SHARED, 256, 32, "93M", 81.8), (_NOT_SHARED, 768, 128, "108M", 82.3),
      (_SHARED, 64, 8, "10M", 79.0), (_SHARED, 128, 16, "12M", 80.1),
      (_SHARED, 256, 32, "16M", 79.6), (_SHARED, 768, 128, "31M", 79.8),
    )
  ),
)  # fmt: skip

_SHARING = Study(
  name="sharing",
  title="What the layers share",
  paper="table 4",
  question="What does sharing attention, feed-forward or both cost?",
  arms=(
    *(
      _arm(f"{kind}_e{size}", f"{title}, E = {size} ({laptop} on a laptop)",
           f"--sharing={kind} --embedding_size={size}", f"--sharing={kind} --embedding_size={laptop}",
           parameters=parameters, average=average)
      for kind, title, size, laptop, parameters, average in (
        ("all", "all-shared", 768, 128, "31M", 79.8), ("attention", "shared-attention", 768, 128, "83M", 81.6),
        ("ffn", "shared-FFN", 768, 128, "57M", 79.5), ("none", "not-shared", 768, 128, "108M", 82.3),
        ("all", "all-shared", 128, 32, "12M", 80.1), ("attention", "shared-attention", 128, 32, "64M", 81.7),
        ("ffn", "shared-FFN", 128, 32, "38M", 80.2), ("none", "not-shared", 128, 32, "89M", 81.6),
      )
    ),
    # Section 4.5: "divide the L layers into N groups of size M"; the paper gives no figures.
    _arm("groups_2", "two groups of layers, E = 128 (32 on a laptop)",
         "--sharing=all --num_hidden_groups=2 --embedding_size=128",
         "--sharing=all --num_hidden_groups=2 --embedding_size=32"),
    _arm("groups_4", "four groups of three layers, E = 128",
         "--sharing=all --num_hidden_groups=4 --embedding_size=128", scales=("paper",)),
  ),
)  # fmt: skip

_SENTENCE_LOSS = Study(
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
  metric="sentence_order_accuracy@sop",
  probes=(ORDERED, NSP, SOP),
  arms=(
    _arm("none", "none", "", data=ORDERED, masked_LM=54.9, NSP=52.4, SOP=53.3, average=79.0),
    _arm("nsp", "NSP", "", data=NSP, masked_LM=54.5, NSP=90.5, SOP=52.0, average=79.2),
    _arm("sop", "SOP", "", data=SOP, masked_LM=54.0, NSP=78.9, SOP=86.5, average=80.1),
  ),
)

_EQUAL_TIME = Study(
  name="equal_time",
  title="The same time",
  paper="table 6",
  question="Which is better after the same hours: a deep model that is fast, or a wide one that is slow?",
  columns=("parameters", "steps", "hours", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY),
  # How many updates fit into the other arm's hours must be known before the rate can decay over them.
  speed=Speed(flags=("--num_train_steps=60", "--num_warmup_steps=1", "--iterations_per_loop=20")),
  arms=(
    _arm("bert_large", "BERT large, 400,000 steps", "--size=bert_large --num_train_steps=400000",
         "--num_hidden_layers=4 --hidden_size=64 --num_attention_heads=4 --intermediate_size=256 "
         f"--embedding_size=64 {_NOT_SHARED}",
         hours="34", average=87.2),
    _arm("xxlarge", "ALBERT xxlarge, as long", "--size=xxlarge_v1",
         "--num_hidden_layers=2 --hidden_size=256 --num_attention_heads=16 --intermediate_size=1024 "
         f"--embedding_size=32 {_SHARED}",
         time_of="bert_large", hours="32", average=88.7),
  ),
)  # fmt: skip

_MORE_DATA = Study(
  name="more_data",
  title="More data",
  paper="table 7, figure 2a",
  question="Does more text help at the same number of updates? Half of the files of the text against all of them.",
  eval_data=HALF,
  curves=(("eval", "masked_lm_accuracy"),),
  metric="masked_lm_accuracy",
  arms=(
    _arm("half", "half of the text", "", data=HALF, average=80.1),
    _arm("all", "all of the text", "", average=80.8),
  ),
)

_DROPOUT = Study(
  name="dropout",
  title="Dropout",
  paper="table 8, figure 2b",
  question="Does a model that has not yet fitted its text gain from training without dropout?",
  curves=(("eval", "masked_lm_accuracy"), ("train", "masked_lm_accuracy")),
  columns=("parameters", "train_masked_lm_accuracy", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY),
  metric="masked_lm_accuracy",
  arms=(
    _arm("with", "with dropout, 0.1", "--hidden_dropout_prob=0.1 --attention_probs_dropout_prob=0.1", average=90.4),
    _arm("without", "without", "--hidden_dropout_prob=0 --attention_probs_dropout_prob=0", average=90.7),
  ),
)  # fmt: skip

_DEPTHS: Mapping[int, float] = {1: 52.9, 3: 71.2, 6: 77.2, 12: 81.5, 24: 82.1, 48: 81.8}
_LAPTOP_DEPTHS = (1, 2, 4, 8)


def _depth_arms() -> tuple[Arm, ...]:
  """Each begins with the weights of the depth before (appendix A.1)."""
  arms = []
  for depth in sorted({*_DEPTHS, *_LAPTOP_DEPTHS}):
    scales = {"paper": tuple(_DEPTHS), "laptop": _LAPTOP_DEPTHS}
    mine = tuple(scale for scale, depths in scales.items() if depth in depths)
    shallower = [other for other in scales[mine[0]] if other < depth]  # Of both scales only the first depth.
    arms.append(
      _arm(
        f"layers_{depth}",
        "1 layer" if depth == 1 else f"{depth} layers",
        f"--num_hidden_layers={depth}",
        after=f"layers_{shallower[-1]}" if shallower else "",
        scales=mine,
        **({_PARAMETERS: "18M", _AVERAGE: _DEPTHS[depth]} if depth in _DEPTHS else {}),
      )
    )
  return tuple(arms)


_DEPTH = Study(
  name="depth",
  title="Depth",
  paper="table 11",
  question="How many times can one block be applied before another application no longer helps?",
  arms=_depth_arms(),
)

_WIDTH = Study(
  name="width",
  title="Width",
  paper="table 12",
  question="How wide can a model of three layers be before more no longer helps?",
  arms=tuple(
    _arm(f"h{width}", f"H = {width} ({laptop} on a laptop)",
         f"--hidden_size={width} --num_attention_heads={width // 64} --intermediate_size={4 * width}",
         f"--hidden_size={laptop} --num_attention_heads={laptop // 16} --intermediate_size={4 * laptop}",
         parameters=parameters, average=average)
    for width, laptop, parameters, average in (
      (1024, 48, "18M", 71.2), (2048, 96, "60M", 74.6), (4096, 192, "225M", 76.3), (6144, 288, "499M", 74.0)
    )
  ),
)  # fmt: skip

_WIDE_DEPTH = Study(
  name="wide_depth",
  title="Depth of a wide model",
  paper="table 13",
  question="Does a wide model gain from twice the layers?",
  arms=(
    _arm("layers_12", "12 layers (2 on a laptop)", "--num_hidden_layers=12", "--num_hidden_layers=2", average=88.7),
    _arm("layers_24", "24 layers (4 on a laptop)", "--num_hidden_layers=24", "--num_hidden_layers=4", average=88.7),
  ),
)  # fmt: skip

_LAYER_SIMILARITY = Study(
  name="layer_similarity",
  title="What a layer does to its input",
  paper="figure 1",
  question="Are the steps from layer to layer smaller and smoother where the layers share their parameters?",
  columns=("parameters", "layer_l2", "layer_degrees", "masked_lm_accuracy"),
  layers=True,
  fine_tuned=False,
  seeds={"laptop": (1,), "paper": (1,)},
  arms=(
    _arm("bert_large", "BERT large: not shared", "--size=bert_large", f"{_NOT_SHARED}"),
    _arm("large", "ALBERT large: shared", "--size=large_v1", f"{_SHARED}"),
  ),
)

# The arms are the runs that --runs names.
_LEARNING_CURVES = Study(
  name="learning_curves",
  title="Learning curves",
  paper="figure 2",
  question="How do these runs compare, update by update?",
  columns=("parameters", "steps", "train_masked_lm_loss", "masked_lm_loss", "masked_lm_accuracy", SENTENCE_ACCURACY),
  curves=(("eval", "masked_lm_accuracy"), ("train", "masked_lm_accuracy")),
  metric="masked_lm_accuracy",
  fine_tuned=False,
  arms=(),
)  # fmt: skip

STUDIES: Mapping[str, Study] = {
  study.name: study
  for study in (
    _SIZES,
    _EMBEDDING,
    _SHARING,
    _SENTENCE_LOSS,
    _EQUAL_TIME,
    _MORE_DATA,
    _DROPOUT,
    _DEPTH,
    _WIDTH,
    _WIDE_DEPTH,
    _LAYER_SIMILARITY,
    _LEARNING_CURVES,
  )
}


def find_study(name: str) -> Study:
  """The study of this name; an unknown one is a `UserError` that lists them."""
  check_name(name, list(STUDIES), what="study")
  return STUDIES[name]
