"""The encoder and its heads as an ONNX graph."""
