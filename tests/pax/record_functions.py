"""Records what functions of praxis return.

    python -m tests.pax.record_functions PAXML PRAXIS [PACKAGES]

The arguments are those of `tests.pax.record`. It writes functions.npz.
"""

import sys

import numpy as np

from tests import source_tree
from tests.pax import function_cases, record

RECORDED = source_tree.ROOT / 'testdata/pax/functions.npz'


if __name__ == '__main__':
  record.mount(sys.argv[1:])
  np.savez_compressed(RECORDED, **function_cases.results())
