"""A learner that has learnt: its state, how far its answers can be trusted, its file, its ONNX graph."""
