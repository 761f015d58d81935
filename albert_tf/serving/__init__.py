"""Trained models for use elsewhere. Models are arguments here; `models.exports` opens those of runs.

`export` makes SavedModels: `signatures/` has a file a kind, `golden` writes what lies beside the graph. `check` tries
an export without this project; `server` serves them on this machine, with `page.html`. `lite` makes LiteRT files.
"""
