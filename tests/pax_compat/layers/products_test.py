"""Products with merged leading dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.layer_core import sharding
from pax_compat.layers import products

D, N, H = 5, 2, 3


@pytest.mark.parametrize(
  ('equation', 'inputs', 'weight'),
  [
    ('...i,io->...o', [2, 4, D], [D, 7]),
    ('...i,io->...o', [2, 4, 3, D], [D, 7]),
    ('...i,io->...o', [4, D], [D, 7]),
    ('...i,io->...o', [D], [D, 7]),
    ('...d,dnh->...nh', [2, 4, D], [D, N, H]),
    ('...nh,dnh->...d', [2, 4, N, H], [D, N, H]),
    ('...nh,nhd->...d', [2, 4, N, H], [N, H, D]),
    ('...d,vd->...v', [2, 4, D], [7, D]),
  ],
)
def test_it_is_an_einsum(equation, inputs, weight):
  random = np.random.default_rng(0)
  x, w = random.normal(size=inputs), random.normal(size=weight)

  def values(einsum):
    out, pull_back = jax.vjp(lambda x, w: einsum(equation, x, w), x, w)
    return out, pull_back(jnp.cos(out))

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    values(products.einsum),
    values(jnp.einsum),
  )


def test_dimensions_that_may_be_split_are_not_merged():
  def ranks():
    jaxpr = jax.make_jaxpr(lambda x, w: products.einsum('...i,io->...o', x, w))(
      jax.ShapeDtypeStruct([2, 4, D], np.float32),
      jax.ShapeDtypeStruct([D, 7], np.float32),
    )
    return [e.invars[0].aval.ndim for e in jaxpr.eqns if 'dot' in str(e)]

  assert sharding.is_one_cpu() and ranks() == [2]
  mesh = jax.sharding.AbstractMesh((2,), ('data',))
  with jax.sharding.use_abstract_mesh(mesh):
    assert not sharding.is_one_cpu() and ranks() == [3]
