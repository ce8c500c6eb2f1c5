"""Checkpoints: asynchronous, verified, resumable. The one user of Orbax.

    checkpoints/120/...               the files that Orbax wrote for step 120
    checkpoints/manifests/120.json    the commit: size and CRC-32 of each file,
                                      and whether to keep it permanently

A checkpoint exists when its manifest exists: the manifest is written last and
deleted first. Orbax does not verify files: it accepts an empty folder as a
checkpoint, and restores flipped bits silently. So files are checked against the
manifest before they are restored.

The state is stored as a flat map from dotted path to array, so that checkpoints
do not depend on container types.
"""

from pax_compat.checkpoints.checkpointer import Checkpointer
from pax_compat.checkpoints.stored import StoredCheckpoint
from pax_compat.checkpoints.stored_arrays import state_paths

__all__ = ['Checkpointer', 'StoredCheckpoint', 'state_paths']
