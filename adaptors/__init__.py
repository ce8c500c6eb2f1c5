"""Everything that uses Lingvo, TensorFlow or SeqIO."""
