"""Reports which Lingvo experiments run here, how, and what is unsupported."""
