"""Image classification, in the style of Pax."""
