"""Metrics, and where they are written: TensorBoard, JSON lines, terminal."""
