"""Metrics, and their outputs: TensorBoard, JSON lines, the terminal."""
