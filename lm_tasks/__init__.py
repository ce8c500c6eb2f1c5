"""Language-model experiments, in the style of Pax and in that of Lingvo."""
