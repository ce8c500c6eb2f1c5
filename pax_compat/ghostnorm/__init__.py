"""Pax's protocol of ghost norms; the learner's ghost clipping needs none."""
