"""Says of Lingvo experiments what runs here, how, and what is in the way."""
