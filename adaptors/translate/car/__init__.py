"""Translators of Lingvo's detectors of objects in point clouds."""
