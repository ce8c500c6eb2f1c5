"""Imports what programs of `forking` need; only its fork server imports it.

Importing them starts no backend, whose threads a fork would lose, and defines
none of our flags.
"""

import contextlib
import gc
import importlib

# The latter two are imported by Lingvo.
_NAMES = (
  'tensorflow',
  'pax_compat.layers',
  'pax_compat.trainer.run',
  'tensorflow_text',
  'sympy',
)

# A million objects are made, and stay. No process looks through them, which
# would also copy the memory that it shares with the fork server.
gc.disable()
for _name in _NAMES:
  with contextlib.suppress(ImportError):
    importlib.import_module(_name)
gc.freeze()
gc.enable()
