"""What attention layers are tried on, in Lingvo and here.

Shapes: B batch, T time, S source time, D model dims, N heads.
"""

import numpy as np

B, T, S, D, N = 3, 6, 5, 8, 4
_RNG = np.random.default_rng(1)
X = _RNG.normal(size=(B, T, D)).astype(np.float32)
SOURCE = _RNG.normal(size=(B, S, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [4], [1]])).astype(np.float32)
SOURCE_PADDINGS = (np.arange(S) >= np.array([[2], [S], [1]])).astype(np.float32)
# Packed examples; 0 is padding.
SEGMENT_IDS = np.array(
  [[1, 1, 2, 2, 2, 3], [1, 2, 2, 2, 0, 0], [1] * 6], np.int32
)
