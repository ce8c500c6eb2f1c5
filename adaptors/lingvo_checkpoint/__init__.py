"""The command that converts TensorFlow checkpoints of Lingvo runs."""
