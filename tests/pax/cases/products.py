"""Cases of products in 8 bits."""

from tests.pax.layer_cases import Case, normal

_X = normal(2, 5, 6)
_WEIGHTS = normal(6, 4, seed=3), normal(6, 4, seed=4)


def _linear(**fields):
  def config(n):
    product = n.Config(n.layers.Fp8EinsumOp, amax_history_length=4, **fields)
    return n.Config(
      n.layers.Linear, input_dims=6, output_dims=4, einsum_tpl=product
    )

  return config


def _heads(n):
  return n.Config(
    n.layers.AttentionProjection,
    input_dim=6,
    num_heads=2,
    dim_per_head=3,
    einsum_tpl=n.Config(n.layers.Fp8EinsumOp, amax_history_length=4),
  )


def _gated(n):
  # Pax's own gate is not a product with its weight if this is True.
  return n.Config(
    n.layers.Fp8EinsumGatedOp, amax_history_length=4, use_direct_quant=False
  )


def _products(layer, *args):
  return layer('...i,io->...o', *args)


CASES = {
  'direct': Case(_linear(), (_X,)),
  'rounded': Case(_linear(use_direct_quant=False), (_X,)),
  'heads': Case(_heads, (_X,)),
  'gated': Case(_gated, (_X, *_WEIGHTS), method=_products),
}
