"""Building and running Lingvo's input generators."""
