"""Does an export load and answer wherever TensorFlow runs? Checked without this project's code.

This is conformance to what servers expect, checked on this machine; it is not TensorFlow Serving.
"""
