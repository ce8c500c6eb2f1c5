"""Records the numbers of a loop that calls Pax's step functions.

    python -m tests.pax.record_loops PAXML PRAXIS [PACKAGES]

The arguments are those of `tests.pax.record`. It writes loops.npz.
"""

import sys

import numpy as np

from tests import source_tree
from tests.pax import loop_cases, record

RECORDED = source_tree.ROOT / 'testdata/pax/loops.npz'


def main():
  record.mount(sys.argv[1:])
  found = {}
  for compiler in loop_cases.COMPILERS:
    made = loop_cases.results(compiler)
    found |= {f'{compiler}/{path}': x for path, x in made.items()}
  np.savez_compressed(RECORDED, **found)


if __name__ == '__main__':
  main()
