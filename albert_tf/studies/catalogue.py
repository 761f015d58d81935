"""Every study by name: tables and figures of the ALBERT paper (arXiv 1909.11942), with its numbers.

`plan.py` makes the commands of a study from this data, and `report.py` its table. Laptop arms keep
the paper's ratios of widths and depths, not its sizes. "average" is over five tasks: SQuAD 1.1 and
2.0, MNLI, SST-2, RACE.
"""

from collections.abc import Mapping
from typing import NamedTuple

SCALES = ("laptop", "paper")


class Arm(NamedTuple):
  """One row of a study's table."""

  # For directories and --arms.
  name: str
  # In the table.
  title: str
  # For run_pretrain.py.
  flags: str
  # For run_pretrain.py on a laptop; "": `flags`.
  laptop_flags: str = ""
  # In the table of a laptop; "": `title`.
  laptop_title: str = ""
  scales: tuple[str, ...] = SCALES
  # Records: sop, nsp, ordered; half: sop of the first half of the text files.
  data: str = "sop"
  # Name of the arm that gives the initial weights, of the same seed.
  after: str = ""
  # Heading → the paper's number.
  paper: Mapping[str, float | str] = {}

  def flags_at(self, scale: str) -> list[str]:
    """The flags of run_pretrain.py at a scale."""
    if scale == "laptop" and self.laptop_flags:
      return self.laptop_flags.split()
    return self.flags.split()

  def title_at(self, scale: str) -> str:
    """The title in the table of a scale."""
    if scale == "laptop" and self.laptop_title:
      return self.laptop_title
    return self.title


class Study(NamedTuple):
  """One table or figure of the paper."""

  # For --study.
  name: str
  # Of the table.
  title: str
  # Table or figure of the paper.
  paper: str
  # One sentence.
  question: str
  # In the order of the table.
  arms: tuple[Arm, ...]
  # Metrics of the table, in order; see `report`.
  columns: tuple[str, ...] = (
    "parameters",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "sentence_accuracy",
  )
  # Panels of the picture: (split, metric).
  curves: tuple[tuple[str, str], ...] = (("eval", "masked_lm_loss"),)
  # evaluate.py measures every trained arm on the held-out documents of these records.
  probes: tuple[str, ...] = ()
  # The held-out set of all arms; "": each arm's own.
  eval_data: str = ""
  # Compare input and output of every layer (figure 1).
  layers: bool = False
  # Default of --seeds on a laptop; at the paper's scale it is 1.
  laptop_seeds: tuple[int, ...] = (1, 2, 3)

  def arms_at(self, scale: str) -> tuple[Arm, ...]:
    """The arms that run at a scale."""
    return tuple(arm for arm in self.arms if scale in arm.scales)


# Sizes: tables 1 and 2.


def _laptop_shape(hidden: int, layers: int) -> str:
  """A sixteenth of a size's width and a sixth of its layers; heads of 16, and F = 4 H."""
  return (
    f"--hidden_size={hidden} --num_hidden_layers={layers} --num_attention_heads={hidden // 16} "
    f"--intermediate_size={4 * hidden}"
  )


def _laptop_albert(hidden: int, layers: int) -> str:
  return f"{_laptop_shape(hidden, layers)} --embedding_size=32"


def _laptop_bert(hidden: int, layers: int) -> str:
  return f"{_laptop_shape(hidden, layers)} --embedding_size={hidden} --sharing=none"


def _size(
  size: str, title: str, laptop_flags: str, parameters: str, average: float, speed: float
) -> Arm:
  """A row of table 2. The arm of "base_v1" is "base"."""
  return Arm(
    size.removesuffix("_v1"),
    title,
    f"--size={size}",
    laptop_flags,
    paper={"parameters": parameters, "average": average, "speed": speed},
  )


_SIZES = Study(
  "sizes",
  "Sizes",
  "tables 1 and 2",
  "What do parameters, width and depth buy, and what do they cost in speed?",
  laptop_seeds=(1,),
  arms=(
    # Size; title; H and layers on a laptop; the paper's parameters, average and speed.
    _size("bert_base", "BERT base", _laptop_bert(48, 2), "108M", 82.3, 4.7),
    _size("bert_large", "BERT large", _laptop_bert(64, 4), "334M", 85.2, 1.0),
    # From the paper's first version; table 1 has only its size.
    Arm(
      "bert_xlarge",
      "BERT xlarge",
      "--size=bert_xlarge",
      scales=("paper",),
      paper={"parameters": "1270M"},
    ),
    _size("base_v1", "ALBERT base", _laptop_albert(48, 2), "12M", 80.1, 5.6),
    _size("large_v1", "ALBERT large", _laptop_albert(64, 4), "18M", 82.4, 1.7),
    _size("xlarge_v1", "ALBERT xlarge", _laptop_albert(128, 4), "60M", 85.5, 0.6),
    _size("xxlarge_v1", "ALBERT xxlarge", _laptop_albert(256, 2), "235M", 88.7, 0.3),
  ),
)

# Embedding size and sharing: tables 3 and 4.

_SHARING_TITLES = {
  "all": "all-shared",
  "attention": "shared-attention",
  "ffn": "shared-FFN",
  "none": "not-shared",
}


def _shared(sharing: str, E: int, parameters: str, average: float) -> Arm:
  """A row of tables 3 and 4. H = 768 in the paper and 128 on a laptop, with about the same E / H.

  The laptop's E for 64, 128, 256 and 768 is 8, 16, 32 and 128.
  """
  laptop_E = E // 8
  if E == 768:
    laptop_E = 128  # E = H.
  title = _SHARING_TITLES[sharing]
  return Arm(
    f"{sharing}_e{E}",
    f"{title}, E = {E}",
    f"--sharing={sharing} --embedding_size={E}",
    f"--sharing={sharing} --embedding_size={laptop_E}",
    laptop_title=f"{title}, E = {laptop_E} for {E}",
    paper={"parameters": parameters, "average": average},
  )


_EMBEDDING = Study(
  "embedding",
  "Embedding size",
  "table 3",
  "Does a wider embedding help, with and without shared layers?",
  arms=(
    # Sharing and E; the paper's parameters and average.
    _shared("none", 64, "87M", 81.3),
    _shared("none", 128, "89M", 81.7),
    _shared("none", 256, "93M", 81.8),
    _shared("none", 768, "108M", 82.3),
    _shared("all", 64, "10M", 79.0),
    _shared("all", 128, "12M", 80.1),
    _shared("all", 256, "16M", 79.6),
    _shared("all", 768, "31M", 79.8),
  ),
)

_SHARING = Study(
  "sharing",
  "What the layers share",
  "table 4",
  "What does sharing attention, feed-forward or both cost?",
  arms=(
    # Sharing and E; the paper's parameters and average.
    _shared("all", 768, "31M", 79.8),
    _shared("attention", 768, "83M", 81.6),
    _shared("ffn", 768, "57M", 79.5),
    _shared("none", 768, "108M", 82.3),
    _shared("all", 128, "12M", 80.1),
    _shared("attention", 128, "64M", 81.7),
    _shared("ffn", 128, "38M", 80.2),
    _shared("none", 128, "89M", 81.6),
    # Section 4.5: "divide the L layers into N groups of size M"; the paper gives no figures.
    Arm(
      "groups_2",
      "two groups of layers, E = 128",
      "--sharing=all --num_hidden_groups=2 --embedding_size=128",
      "--sharing=all --num_hidden_layers=4 --num_hidden_groups=2 --embedding_size=16",
      laptop_title="four layers in two groups, E = 16 for 128",
    ),
    Arm(
      "groups_4",
      "four groups of three layers, E = 128",
      "--sharing=all --num_hidden_groups=4 --embedding_size=128",
      scales=("paper",),
    ),
  ),
)

# Depth and width: tables 11 to 13, figure 1.


def _deeper(before: int, layers: int, scale: str, **paper: float | str) -> Arm:
  """A row of table 11 that begins with the weights of the depth `before` (appendix A.1)."""
  return Arm(
    f"layers_{layers}",
    f"{layers} layers",
    f"--num_hidden_layers={layers}",
    after=f"layers_{before}",
    scales=(scale,),
    paper=paper,
  )


_DEPTH = Study(
  "depth",
  "Depth",
  "table 11",
  "How many times can one block be applied before another application no longer helps?",
  arms=(
    Arm(
      "layers_1", "1 layer", "--num_hidden_layers=1", paper={"parameters": "18M", "average": 52.9}
    ),
    _deeper(1, 3, "paper", parameters="18M", average=71.2),
    _deeper(3, 6, "paper", parameters="18M", average=77.2),
    _deeper(6, 12, "paper", parameters="18M", average=81.5),
    _deeper(12, 24, "paper", parameters="18M", average=82.1),
    _deeper(24, 48, "paper", parameters="18M", average=81.8),
    _deeper(1, 2, "laptop"),
    _deeper(2, 4, "laptop"),
    _deeper(4, 8, "laptop"),
  ),
)


def _wide(H: int, laptop_H: int, parameters: str, average: float) -> Arm:
  """A row of table 12: heads of 64, on a laptop of 12; F = 4 H."""
  return Arm(
    f"h{H}",
    f"H = {H}",
    f"--hidden_size={H} --num_attention_heads={H // 64} --intermediate_size={4 * H}",
    f"--hidden_size={laptop_H} --num_attention_heads={laptop_H // 12} "
    f"--intermediate_size={4 * laptop_H}",
    laptop_title=f"H = {laptop_H} for {H}",
    paper={"parameters": parameters, "average": average},
  )


_WIDTH = Study(
  "width",
  "Width",
  "table 12",
  "How wide can a model of three layers be before more no longer helps?",
  arms=(
    _wide(1024, 24, "18M", 71.2),
    _wide(2048, 48, "60M", 74.6),
    _wide(4096, 96, "225M", 76.3),
    _wide(6144, 144, "499M", 74.0),
  ),
)

_WIDE_DEPTH = Study(
  "wide_depth",
  "Depth of a wide model",
  "table 13",
  "Does a wide model gain from twice the layers?",
  arms=(
    Arm(
      "layers_12",
      "12 layers",
      "--num_hidden_layers=12",
      "--num_hidden_layers=2",
      laptop_title="2 layers for 12",
      paper={"average": 88.7},
    ),
    Arm(
      "layers_24",
      "24 layers",
      "--num_hidden_layers=24",
      "--num_hidden_layers=4",
      laptop_title="4 layers for 24",
      paper={"average": 88.7},
    ),
  ),
)

_LAYER_SIMILARITY = Study(
  "layer_similarity",
  "What a layer does to its input",
  "figure 1",
  "Are the steps from layer to layer smaller and smoother where the layers share their parameters?",
  columns=("parameters", "layer_l2", "layer_degrees", "masked_lm_accuracy"),
  layers=True,
  laptop_seeds=(1,),
  arms=(
    Arm(
      "bert_large",
      "BERT large: not shared",
      "--size=bert_large",
      "--sharing=none",
      laptop_title="not shared",
    ),
    Arm("large", "ALBERT large: shared", "--size=large_v1", "--sharing=all", laptop_title="shared"),
  ),
)

# Sentence loss, training time, data and dropout: tables 5 to 8, figure 2.

_SENTENCE_LOSS = Study(
  "sentence_loss",
  "Sentence loss",
  "table 5",
  "What does a model learn from sentence order that it does not learn from next sentence?",
  columns=(
    "parameters",
    "masked_lm_accuracy@ordered",
    "next_sentence_accuracy@nsp",
    "sentence_order_accuracy@sop",
  ),
  probes=("ordered", "nsp", "sop"),
  arms=(
    # In short runs a sentence loss takes most of the updates. So on a laptop all arms begin after
    # the plateau of the masked-LM loss.
    Arm(
      "start",
      "where the others start",
      "--num_train_steps=6000 --num_warmup_steps=400 --learning_rate=0.005",
      data="ordered",
      scales=("laptop",),
    ),
    Arm(
      "none",
      "none",
      "",
      data="ordered",
      after="start",
      paper={"masked LM": 54.9, "NSP": 52.4, "SOP": 53.3, "average": 79.0},
    ),
    Arm(
      "nsp",
      "NSP",
      "",
      data="nsp",
      after="start",
      paper={"masked LM": 54.5, "NSP": 90.5, "SOP": 52.0, "average": 79.2},
    ),
    Arm(
      "sop",
      "SOP",
      "",
      after="start",
      paper={"masked LM": 54.0, "NSP": 78.9, "SOP": 86.5, "average": 80.1},
    ),
  ),
)

_EQUAL_TIME = Study(
  "equal_time",
  "The same time",
  "table 6",
  "Which is better after the same hours: a deep model that is fast, or a wide one that is slow?",
  columns=(
    "parameters",
    "steps",
    "hours",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "sentence_accuracy",
  ),
  arms=(
    # The updates are the paper's; on a laptop, those that were measured to take equal time.
    Arm(
      "bert_large",
      "BERT large, 400,000 steps",
      "--size=bert_large --num_train_steps=400000",
      f"{_laptop_bert(64, 4)} --num_train_steps=6000",
      laptop_title="four layers of 64, not shared",
      paper={"hours": 34, "average": 87.2},
    ),
    Arm(
      "xxlarge",
      "ALBERT xxlarge, 125,000 steps",
      "--size=xxlarge_v1 --num_train_steps=125000",
      f"{_laptop_albert(256, 2)} --sharing=all --num_train_steps=4700",
      laptop_title="two layers of 256, shared, as long",
      paper={"hours": 32, "average": 88.7},
    ),
  ),
)

_MORE_DATA = Study(
  "more_data",
  "More data",
  "table 7, figure 2a",
  "Does more text help at the same number of updates? "
  "Half of the files of the text against all of them.",
  eval_data="half",
  curves=(("eval", "masked_lm_accuracy"),),
  arms=(
    Arm("half", "half of the text", "", data="half", paper={"average": 80.1}),
    Arm("all", "all of the text", "", paper={"average": 80.8}),
  ),
)

_DROPOUT = Study(
  "dropout",
  "Dropout",
  "table 8, figure 2b",
  "Does a model that has not yet fitted its text gain from training without dropout?",
  curves=(("eval", "masked_lm_accuracy"), ("train", "masked_lm_accuracy")),
  columns=(
    "parameters",
    "train_masked_lm_accuracy",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "sentence_accuracy",
  ),
  arms=(
    Arm(
      "with",
      "with dropout, 0.1",
      "--hidden_dropout_prob=0.1 --attention_probs_dropout_prob=0.1",
      paper={"average": 90.4},
    ),
    Arm(
      "without",
      "without",
      "--hidden_dropout_prob=0 --attention_probs_dropout_prob=0",
      paper={"average": 90.7},
    ),
  ),
)

# Flags common to all arms are in recipes/studies/STUDY/SCALE.flags.
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
  )
}
