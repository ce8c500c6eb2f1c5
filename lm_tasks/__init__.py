"""Language-model experiments, in the style of Pax and of Lingvo."""
