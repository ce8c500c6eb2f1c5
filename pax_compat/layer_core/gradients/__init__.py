"""What layers add to a backward pass: norms of the gradients of examples."""
