"""Models as files: one-file format, versions and locks, ONNX."""
