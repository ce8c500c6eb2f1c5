"""Connectionist temporal classification: losses and alignments."""

from pax_compat.layers.ctc_objectives.alignments import (  # noqa: F401
  CtcAlignments,
  ctc_loss_with_alignments,
  forced_alignment,
  frame_alignment_to_label_alignment,
  is_valid_ctc_seq,
)
