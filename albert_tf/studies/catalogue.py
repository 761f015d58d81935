"""Every study by name: the tables and figures of the ALBERT paper (arXiv 1909.11942), with the paper's numbers.

Laptop arms keep the paper's ratios of widths and depths, not its sizes. "average" is over five tasks: SQuAD 1.1 and
2.0, MNLI, SST-2, RACE.
"""

from collections.abc import Mapping
import dataclasses

SCALES = ("laptop", "paper")
SHARED, UNSHARED = "--sharing=all", "--sharing=none"


@dataclasses.dataclass(frozen=True)
class Arm:
  """One row of a study's table."""

  name: str  # For directories and --arms.
  title: str  # In the table.
  flags: str  # For run_pretrain.py.
  laptop_flags: str | None = None  # For run_pretrain.py on a laptop; None: `flags`.
  laptop_title: str = ""
  scales: tuple[str, ...] = SCALES
  data: str = "sop"  # Records: sop, nsp, ordered; half: sop of the first half of the text files.
  after: str = ""  # Name of the arm that gives the initial weights, of the same seed.
  paper: Mapping[str, float | str] = dataclasses.field(default_factory=dict)  # Heading → the paper's number.

  def flags_at(self, scale: str) -> list[str]:
    """The flags of run_pretrain.py at a scale."""
    return (self.flags if scale == "paper" or self.laptop_flags is None else self.laptop_flags).split()

  def title_at(self, scale: str) -> str:
    """The title in the table of a scale."""
    return self.title if scale == "paper" else self.laptop_title or self.title


@dataclasses.dataclass(frozen=True)
class Study:
  """One table or figure of the paper."""

  name: str  # For --study.
  title: str  # Of the table.
  paper: str  # Table or figure of the paper.
  question: str  # One sentence.
  arms: tuple[Arm, ...]  # In the order of the table.
  # Metrics of the table, in order; see `report`.
  columns: tuple[str, ...] = ("parameters", "masked_lm_loss", "masked_lm_accuracy", "sentence_accuracy")
  curves: tuple[tuple[str, str], ...] = (("eval", "masked_lm_loss"),)  # Panels: (split, metric).
  # evaluate.py measures every trained arm on the held-out part of these records.
  probes: tuple[str, ...] = ()
  eval_data: str = ""  # The held-out set of all arms; "": each arm's own.
  layers: bool = False  # Compare input and output of every layer (figure 1).
  laptop_seeds: tuple[int, ...] = (1, 2, 3)  # Default of --seeds on a laptop; at the paper's scale: 1.

  def arms_at(self, scale: str) -> tuple[Arm, ...]:
    """The arms that run at a scale."""
    return tuple(arm for arm in self.arms if scale in arm.scales)


def _laptop_size(hidden: int, layers: int, *, bert: bool = False) -> str:
  """A sixteenth of the width and a sixth of the layers of a size of table 1; heads of 16, F = 4 H."""
  shape = (
    f"--num_hidden_layers={layers} --num_attention_heads={hidden // 16} --intermediate_size={4 * hidden}"
  )
  embedding = f"--embedding_size={hidden} {UNSHARED}" if bert else "--embedding_size=32"
  return f"--hidden_size={hidden} {shape} {embedding}"


SIZES = Study(
  "sizes", "Sizes", "tables 1 and 2",
  "What do parameters, width and depth buy, and what do they cost in speed?",
  laptop_seeds=(1,),
  arms=(
    Arm("bert_base", "BERT base", "--size=bert_base", _laptop_size(48, 2, bert=True),
         paper={"parameters": "108M", "average": 82.3, "speed": 4.7}),
    Arm("bert_large", "BERT large", "--size=bert_large", _laptop_size(64, 4, bert=True),
         paper={"parameters": "334M", "average": 85.2, "speed": 1.0}),
    # From the paper's first version; table 1 has only its size.
    Arm("bert_xlarge", "BERT xlarge", "--size=bert_xlarge", scales=("paper",), paper={"parameters": "1270M"}),
    Arm("base", "ALBERT base", "--size=base_v1", _laptop_size(48, 2),
         paper={"parameters": "12M", "average": 80.1, "speed": 5.6}),
    Arm("large", "ALBERT large", "--size=large_v1", _laptop_size(64, 4),
         paper={"parameters": "18M", "average": 82.4, "speed": 1.7}),
    Arm("xlarge", "ALBERT xlarge", "--size=xlarge_v1", _laptop_size(128, 4),
         paper={"parameters": "60M", "average": 85.5, "speed": 0.6}),
    Arm("xxlarge", "ALBERT xxlarge", "--size=xxlarge_v1", _laptop_size(256, 2),
         paper={"parameters": "235M", "average": 88.7, "speed": 0.3}),
  ),
)  # fmt: skip

_KINDS = {"all": "all-shared", "attention": "shared-attention", "ffn": "shared-FFN", "none": "not-shared"}


def _sharing(kind: str, E: int, parameters: str, average: float) -> Arm:
  """A row of tables 3 and 4. H = 768 in the paper, 128 on the laptop, with the same ratio of E to H."""
  laptop = E // 8 if E < 768 else 128
  return Arm(
    f"{kind}_e{E}",
    f"{_KINDS[kind]}, E = {E}",
    f"--sharing={kind} --embedding_size={E}",
    f"--sharing={kind} --embedding_size={laptop}",
    laptop_title=f"{_KINDS[kind]}, E = {laptop} for {E}",
    paper={"parameters": parameters, "average": average},
  )


EMBEDDING = Study(
  "embedding", "Embedding size", "table 3",
  "Does a wider embedding help, with and without shared layers?",
  arms=(
    _sharing("none", 64, "87M", 81.3), _sharing("none", 128, "89M", 81.7), _sharing("none", 256, "93M", 81.8),
    _sharing("none", 768, "108M", 82.3),
    _sharing("all", 64, "10M", 79.0), _sharing("all", 128, "12M", 80.1), _sharing("all", 256, "16M", 79.6),
    _sharing("all", 768, "31M", 79.8),
  ),
)  # fmt: skip

SHARING = Study(
  "sharing", "What the layers share", "table 4",
  "What does sharing attention, feed-forward or both cost?",
  arms=(
    _sharing("all", 768, "31M", 79.8), _sharing("attention", 768, "83M", 81.6), _sharing("ffn", 768, "57M", 79.5),
    _sharing("none", 768, "108M", 82.3),
    _sharing("all", 128, "12M", 80.1), _sharing("attention", 128, "64M", 81.7), _sharing("ffn", 128, "38M", 80.2),
    _sharing("none", 128, "89M", 81.6),
    # Section 4.5: "divide the L layers into N groups of size M"; the paper gives no figures.
    Arm("groups_2", "two groups of layers, E = 128",
         "--sharing=all --num_hidden_groups=2 --embedding_size=128",
         "--sharing=all --num_hidden_layers=4 --num_hidden_groups=2 --embedding_size=16",
         laptop_title="four layers in two groups, E = 16 for 128"),
    Arm("groups_4", "four groups of three layers, E = 128",
         "--sharing=all --num_hidden_groups=4 --embedding_size=128", scales=("paper",)),
  ),
)  # fmt: skip

DEPTH = Study(
  "depth", "Depth", "table 11",
  "How many times can one block be applied before another application no longer helps?",
  # Each begins with the weights of the depth before (appendix A.1).
  arms=(
    Arm("layers_1", "1 layer", "--num_hidden_layers=1", paper={"parameters": "18M", "average": 52.9}),
    *(
      Arm(f"layers_{depth}", f"{depth} layers", f"--num_hidden_layers={depth}", after=f"layers_{shallower}",
           scales=("paper",), paper={"parameters": "18M", "average": average})
      for shallower, depth, average in ((1, 3, 71.2), (3, 6, 77.2), (6, 12, 81.5), (12, 24, 82.1), (24, 48, 81.8))
    ),
    *(
      Arm(f"layers_{depth}", f"{depth} layers", f"--num_hidden_layers={depth}", after=f"layers_{depth // 2}",
           scales=("laptop",))
      for depth in (2, 4, 8)
    ),
  ),
)  # fmt: skip

WIDTH = Study(
  "width", "Width", "table 12",
  "How wide can a model of three layers be before more no longer helps?",
  arms=tuple(
    Arm(f"h{width}", f"H = {width}",
         f"--hidden_size={width} --num_attention_heads={width // 64} --intermediate_size={4 * width}",
         f"--hidden_size={laptop} --num_attention_heads={laptop // 12} --intermediate_size={4 * laptop}",
         laptop_title=f"H = {laptop} for {width}", paper={"parameters": parameters, "average": average})
    for width, laptop, parameters, average in (
      (1024, 24, "18M", 71.2), (2048, 48, "60M", 74.6), (4096, 96, "225M", 76.3), (6144, 144, "499M", 74.0)
    )
  ),
)  # fmt: skip

WIDE_DEPTH = Study(
  "wide_depth", "Depth of a wide model", "table 13",
  "Does a wide model gain from twice the layers?",
  arms=(
    Arm("layers_12", "12 layers", "--num_hidden_layers=12", "--num_hidden_layers=2",
        laptop_title="2 layers for 12", paper={"average": 88.7}),
    Arm("layers_24", "24 layers", "--num_hidden_layers=24", "--num_hidden_layers=4",
        laptop_title="4 layers for 24", paper={"average": 88.7}),
  ),
)  # fmt: skip

LAYER_SIMILARITY = Study(
  "layer_similarity", "What a layer does to its input", "figure 1",
  "Are the steps from layer to layer smaller and smoother where the layers share their parameters?",
  columns=("parameters", "layer_l2", "layer_degrees", "masked_lm_accuracy"),
  layers=True,
  laptop_seeds=(1,),
  arms=(
    Arm("bert_large", "BERT large: not shared", "--size=bert_large", UNSHARED, laptop_title="not shared"),
    Arm("large", "ALBERT large: shared", "--size=large_v1", SHARED, laptop_title="shared"),
  ),
)  # fmt: skip

SENTENCE_LOSS = Study(
  "sentence_loss", "Sentence loss", "table 5",
  "What does a model learn from sentence order that it does not learn from next sentence?",
  columns=(
    "parameters", "masked_lm_accuracy@ordered", "next_sentence_accuracy@nsp", "sentence_order_accuracy@sop",
  ),
  probes=("ordered", "nsp", "sop"),
  arms=(
    # In short runs a sentence loss takes most of the updates; so on a laptop all arms begin after the plateau.
    Arm("start", "", "--num_train_steps=6000 --num_warmup_steps=400 --learning_rate=0.005", data="ordered",
         laptop_title="where the others start", scales=("laptop",)),
    Arm("none", "none", "", data="ordered", after="start",
         paper={"masked LM": 54.9, "NSP": 52.4, "SOP": 53.3, "average": 79.0}),
    Arm("nsp", "NSP", "", data="nsp", after="start",
         paper={"masked LM": 54.5, "NSP": 90.5, "SOP": 52.0, "average": 79.2}),
    Arm("sop", "SOP", "", data="sop", after="start",
         paper={"masked LM": 54.0, "NSP": 78.9, "SOP": 86.5, "average": 80.1}),
  ),
)  # fmt: skip

EQUAL_TIME = Study(
  "equal_time", "The same time", "table 6",
  "Which is better after the same hours: a deep model that is fast, or a wide one that is slow?",
  columns=("parameters", "steps", "hours", "masked_lm_loss", "masked_lm_accuracy", "sentence_accuracy"),
  arms=(
    # The paper's updates; the laptop's updates were measured to take equal time.
    Arm("bert_large", "BERT large, 400,000 steps", "--size=bert_large --num_train_steps=400000",
         f"{_laptop_size(64, 4, bert=True)} --num_train_steps=6000",
         laptop_title="four layers of 64, not shared", paper={"hours": 34, "average": 87.2}),
    Arm("xxlarge", "ALBERT xxlarge, 125,000 steps", "--size=xxlarge_v1 --num_train_steps=125000",
         f"{_laptop_size(256, 2)} {SHARED} --num_train_steps=4700",
         laptop_title="two layers of 256, shared, as long", paper={"hours": 32, "average": 88.7}),
  ),
)  # fmt: skip

MORE_DATA = Study(
  "more_data", "More data", "table 7, figure 2a",
  "Does more text help at the same number of updates? Half of the files of the text against all of them.",
  eval_data="half",
  curves=(("eval", "masked_lm_accuracy"),),
  arms=(
    Arm("half", "half of the text", "", data="half", paper={"average": 80.1}),
    Arm("all", "all of the text", "", paper={"average": 80.8}),
  ),
)  # fmt: skip

DROPOUT = Study(
  "dropout", "Dropout", "table 8, figure 2b",
  "Does a model that has not yet fitted its text gain from training without dropout?",
  curves=(("eval", "masked_lm_accuracy"), ("train", "masked_lm_accuracy")),
  columns=("parameters", "train_masked_lm_accuracy", "masked_lm_loss", "masked_lm_accuracy", "sentence_accuracy"),
  arms=(
    Arm("with", "with dropout, 0.1", "--hidden_dropout_prob=0.1 --attention_probs_dropout_prob=0.1",
        paper={"average": 90.4}),
    Arm("without", "without", "--hidden_dropout_prob=0 --attention_probs_dropout_prob=0",
        paper={"average": 90.7}),
  ),
)  # fmt: skip

# Flags common to all arms are in recipes/studies/STUDY/SCALE.flags.
_ALL = (SIZES, EMBEDDING, SHARING, SENTENCE_LOSS, EQUAL_TIME, MORE_DATA, DROPOUT, DEPTH, WIDTH, WIDE_DEPTH)
STUDIES: Mapping[str, Study] = {study.name: study for study in (*_ALL, LAYER_SIMILARITY)}
