"""Exports of trained models; `keras_api.tasks.open_model` opens those of run directories.

`export` writes SavedModels with the functions of `signatures/`. `loaded_model` loads one as servers
do: `check` tests it without this project, `server` serves it on this machine with `page.html`.
`lite` writes LiteRT files.
"""
