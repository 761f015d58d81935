"""Models without tokenizer for small machines: LiteRT and ONNX."""
