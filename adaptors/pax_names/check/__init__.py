"""Checks the experiments of a paxml checkout against recordings of Pax.

    python -m adaptors.pax_names.check --pax_source=CHECKOUT --recorded=FOLDER

The folder has what real Pax computed: `pax_variables.json`, the variables of
each experiment, and `pax_numbers/NAME.npz`, weights, a batch, losses and
gradients of an experiment at a tiny size, with the class attributes that make
it tiny in `NAME.json`.
"""
