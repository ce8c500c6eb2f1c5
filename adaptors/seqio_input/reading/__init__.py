"""Reading SeqIO tasks: order, position and rows of each host."""
