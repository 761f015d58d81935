"""NumPy twin of the ensemble of SQuAD runs: the n-best lists of one question as a table of runs by texts."""

import numpy as np


def merged(n_best, null_odds):
  """Texts, best first, with their mean probability; and the mean probability that there is no answer.

  Args:
    n_best: of each run, the question's entries of nbest_predictions.json.
    null_odds: of each run, its value in null_odds.json.
  """
  texts = sorted({entry["text"] for entries in n_best for entry in entries} - {""})
  table = np.zeros([len(n_best), len(texts)])
  for row, entries in zip(table, n_best, strict=True):
    for entry in entries:
      if entry["text"]:
        row[texts.index(entry["text"])] = entry["probability"]
  means = table.mean(axis=0)
  order = np.argsort(-means, kind="stable")
  impossible = (1 / (1 + np.exp(-np.array(null_odds)))).mean()
  return [texts[i] for i in order], means[order], impossible
