"""Records the gradients of Pax's stochastic gradients.

    python -m tests.pax.record_sgf PAXML PRAXIS [PACKAGES]

The arguments are those of `tests.pax.record`. It writes sgf.npz.
"""

import importlib
import sys

import numpy as np

from tests import source_tree
from tests.pax import record, sgf_cases

RECORDED = source_tree.ROOT / 'testdata/pax/sgf.npz'


def main():
  record.mount(sys.argv[1:])
  sgf = importlib.import_module('paxml.sgf')
  found = {}
  for name in sgf_cases.CASES:
    made = sgf_cases.results(sgf, lambda cls, fields: cls(**fields), name)
    found |= {f'{name}/{path}': x for path, x in made.items()}
  modules = ('praxis.base_layer', 'praxis.pax_fiddle')
  ghostnorm = ('paxml.ghostnorm.embedding', 'paxml.ghostnorm.linears')
  for name in sgf_cases.GHOST_CASES:
    made = sgf_cases.ghost_results(
      sgf,
      *map(importlib.import_module, modules),
      tuple(map(importlib.import_module, ghostnorm)),
      lambda cls, fields: cls(**fields),
      name,
    )
    found |= {f'{name}/{path}': x for path, x in made.items()}
  np.savez_compressed(RECORDED, **found)


if __name__ == '__main__':
  main()
