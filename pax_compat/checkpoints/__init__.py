"""Checkpoints: asynchronous, verified, resumable. The one user of Orbax.

    checkpoints/120/...               what Orbax wrote for step 120
    checkpoints/manifests/120.json    our commit: each file's size and CRC-32,
                                      and whether it is kept for good

A checkpoint exists when its manifest does. It is written last, and removed
first. Orbax on its own trusts whatever it finds: it takes an empty folder for a
checkpoint, and restores flipped bits in silence. So nothing is restored here
before its files were held against the manifest.

The state is stored as a flat map from dotted path to array, so that checkpoints
outlive changes of container types.
"""

from pax_compat.checkpoints.checkpointer import Checkpointer
from pax_compat.checkpoints.stored_arrays import state_paths

__all__ = ['Checkpointer', 'state_paths']
