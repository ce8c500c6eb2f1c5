"""Components of `base_input`: fields, reading, specs, host fields, ids."""
