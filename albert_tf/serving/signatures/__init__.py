"""The functions of exported models, one file for each kind of model."""
