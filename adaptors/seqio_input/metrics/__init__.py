"""SeqIO metric functions and objects, computed on gathered examples."""
