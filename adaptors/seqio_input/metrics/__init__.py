"""SeqIO's metric functions and objects, run on gathered examples."""
