"""A classifier that keeps learning: the estimator, its updates, and the model on disk that they change."""
