"""Translators of basic layers, softmaxes, embeddings and RNNs."""
