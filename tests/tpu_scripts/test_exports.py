"""The exporting commands as a user runs them."""

import pathlib
import re

import pytest
from support import tiny_run
from support.commands.script_runs import run_command, run_script
from support.stacks import needs_int8


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return pathlib.Path(tiny_run.write_pretrained(tmp_path_factory.mktemp("exports") / "run"))


@pytest.mark.slow
def test_export_then_fill_mask(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  versions = tmp_path / "versions"
  flags = [f"--init_checkpoint={run_dir}", f"--output_dir={versions}", "--version=2"]
  flags += ["--model=fill_mask", "--depths=3"]
  exported = run_command("tpu_scripts/export_saved_model.py", *flags)
  assert exported.returncode == 0, exported.stderr
  first, _, here = exported.stdout.splitlines()
  assert here.startswith("  python tpu_scripts/serve_locally.py --saved_model ")
  assert first == f"Exported fill_mask to {versions}/2"
  text = "the [MASK] is blue and green [MASK] grows"
  flags = [f"--saved_model={versions}", f"--text={text}"]
  depths = [[], ["--num_hidden_layers=3"], ["--num_hidden_layers=4"]]
  answered, same, refused = run_script("fill_mask", [[*flags, *depth] for depth in depths])
  assert answered.status == 0, answered.stderr
  assert same.stdout == answered.stdout
  assert (refused.status, "must be a depth of the export" in refused.stderr) == (2, True)
  lines = answered.stdout.splitlines()
  assert lines[0] == text
  assert len(lines) == 3
  for number, line in enumerate(lines[1:], 1):
    assert re.fullmatch(rf"  \[MASK\] {number}: (\S+ 0\.\d{{3}}  ){{4}}\S+ 0\.\d{{3}}", line)


@needs_int8
@pytest.mark.slow
def test_an_int8_export_is_measured_on_a_table(run_dir: pathlib.Path, tmp_path: pathlib.Path):
  words = "the sea is blue and green grass grows".split()
  lines = [f'"{" ".join(words[start:])}",x' for start in range(6)] * 10
  (tmp_path / "texts.csv").write_text("\n".join(["review,label", *lines]))
  (tmp_path / "empty.csv").write_text("review,label\n")
  flags = [f"--init_checkpoint={run_dir}", "--model=encoder", "--precision=int8"]
  tables = {
    "good": ["--text_columns=review", f"--calibration_file={tmp_path}/texts.csv"],
    "none": [],
    "empty": ["--text_columns=review", f"--calibration_file={tmp_path}/empty.csv"],
    "columns": ["--text_columns=reviews", f"--calibration_file={tmp_path}/texts.csv"],
  }
  commands = [[*flags, *table, f"--output_dir={tmp_path}/{name}"] for name, table in tables.items()]
  good, without, empty, columns = run_script("export_saved_model", commands)
  assert good.status == 0, good.stderr
  assert re.search(r"With float32: agreement 0\.99\d+", good.stdout)
  assert "--calibration_file" in without.stderr
  assert re.search(r"empty\.csv with 0 rows.*--text_columns", empty.stderr)
  assert re.search(r"reviews.*it has review, label.*--text_columns", columns.stderr)
  assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_lite_file_and_how_good_it_is(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  output = tmp_path / "new/fill_mask.tflite"
  arguments = (f"--init_checkpoint={run_dir}", f"--output={output}", "--max_seq_length=16")
  done = run_command("tpu_scripts/export_lite.py", "--model=fill_mask", *arguments)
  assert done.returncode == 0, done.stderr
  first, parity = done.stdout.splitlines()
  assert first == f"Exported fill_mask to {output}: {output.stat().st_size:,} bytes"
  assert re.fullmatch(r"  mlm_logits: largest difference \S+, cosine >= 1\.000000", parity)


def test_mistakes_are_one_message(run_dir, tmp_path: pathlib.Path) -> None:
  cases = {
    "A fine-tuned run directory holds task.json": ["--model=classifier"],
    "model is needed": [],
  }
  common = [f"--init_checkpoint={run_dir}", f"--output_dir={tmp_path}/e"]
  runs = run_script("export_saved_model", [[*arguments, *common] for arguments in cases.values()])
  for message, done in zip(cases, runs, strict=True):
    assert (done.status, message in done.stderr) == (2, True), done
  assert not (tmp_path / "e").exists()


@pytest.mark.slow
def test_a_vocabulary_elsewhere_is_named(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
  elsewhere = tmp_path / "elsewhere.model"
  moved = run_dir.rename(tmp_path / "run")
  (moved / "spm.model").rename(elsewhere)
  (moved / "tokenizer.json").unlink()
  arguments = ("--model=encoder", f"--init_checkpoint={moved}", f"--output_dir={tmp_path}/e")
  named = [*arguments, f"--spm_model_file={elsewhere}"]
  refused, done = run_script("export_saved_model", [arguments, named])
  assert (refused.status, "--spm_model_file" in refused.stderr) == (2, True)
  assert done.status == 0, done.stderr
  assert (tmp_path / "e/1/assets/spm.model").read_bytes() == elsewhere.read_bytes()
