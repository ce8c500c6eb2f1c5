"""Record files: finding, copying and checking what readers of Lingvo read."""
