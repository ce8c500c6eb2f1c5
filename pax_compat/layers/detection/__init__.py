"""Detection of objects in point clouds: boxes, their losses, pooled points."""
