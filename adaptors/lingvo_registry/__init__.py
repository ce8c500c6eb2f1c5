"""Which class of Lingvo's registry has which name, and the options of that."""
