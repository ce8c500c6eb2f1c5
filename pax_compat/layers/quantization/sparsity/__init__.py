"""Sparse weights: which are pruned, when, and layers that prune them.

`sparsity` has the masks as functions, `sparsity_hparams` the settings,
`sparsity_modes` the schedules and `sparsifier` what layers do.
"""
