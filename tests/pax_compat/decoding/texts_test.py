"""What becomes of decoded tokens on the host."""

import jax.numpy as jnp
import numpy as np

from pax_compat.decoding import texts
from pax_compat.nested_map import NestedMap


def test_rows_that_count():
  out = NestedMap(
    ids=jnp.arange(6).reshape(3, 2),
    src=NestedMap(ids=jnp.arange(3)),
    seed=jnp.asarray(7),
    eval_sample_weights=jnp.array([1.0, 0.0, 0.5]),
  )
  got = texts.without_padding_rows(out)
  np.testing.assert_array_equal(got.ids, [[0, 1], [4, 5]])
  np.testing.assert_array_equal(got.src.ids, [0, 2])
  assert got.seed == 7 and isinstance(got.ids, np.ndarray)
  del out.eval_sample_weights
  np.testing.assert_array_equal(texts.without_padding_rows(out).ids, out.ids)


def test_what_comes_after_a_prefix():
  ids = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3]])
  np.testing.assert_array_equal(
    texts.without_prefixes(ids, np.array([1, 4, 0])),
    [[2, 3, 4, 0], [0, 0, 0, 0], [9, 1, 2, 3]],
  )


def test_lengths():
  out = NestedMap(decode_lengths=np.array([1, 2, 6], np.int32))
  assert texts.length_metrics('length', out) == {'length': (3.0, 3.0)}
