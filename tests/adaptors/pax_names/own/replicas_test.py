"""Values of replicas; tests/pax/loops_test.py holds the numbers of steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors.pax_names.own import replicas
from pax_compat import base_metrics, errors


class Doubled(base_metrics.LossAggregator):
  """Twice the loss."""

  def aggregate(self, batch_metrics):
    loss, reported, weight = super().aggregate(batch_metrics)
    return 2 * loss, reported, weight


def test_shares_of_a_loss():
  aggregator = base_metrics.LossAggregator(loss_key='loss')
  found = jax.vmap(
    lambda loss, weight: replicas.share(loss, weight, aggregator),
    axis_name='batch',
  )(jnp.array([1.0, 4.0]), jnp.array([3.0, 1.0]))
  np.testing.assert_array_equal(found, [0.75, 1.0])


@pytest.mark.parametrize(
  'aggregator',
  [
    base_metrics.MultiLossAggregator(loss_keys=['loss']),
    Doubled(loss_key='loss'),
  ],
)
def test_losses_that_have_no_shares(aggregator):
  with pytest.raises(errors.UserError, match='not supported within jax.pmap'):
    replicas.share(jnp.ones([]), jnp.ones([]), aggregator)
