"""TensorFlow ops that XLA cannot compile, replaced."""
