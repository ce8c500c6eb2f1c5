"""Train steps compiled for TPU pods that are not there."""
