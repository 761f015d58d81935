"""Exports of trained models; `models.exports` opens the models of run directories.

`export` writes SavedModels with the functions of `signatures/` and the extra assets of `golden`. `check` tests a
SavedModel without this project, `server` serves it on this machine with `page.html`, `lite` writes LiteRT files.
"""
