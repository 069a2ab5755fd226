"""A trained classifier: its state, predictions, calibration, certificates and novelty, its file, its ONNX graph."""
