"""Everything that knows Lingvo, TensorFlow or SeqIO."""
