"""TensorFlow checkpoints of Lingvo runs, in and out."""
