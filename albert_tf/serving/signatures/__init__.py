"""The functions of an exported model, one file a kind of model."""
