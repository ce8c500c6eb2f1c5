"""TensorFlow SavedModels of trained models, for serving."""
