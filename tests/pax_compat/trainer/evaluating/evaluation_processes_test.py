"""An evaluation does not depend on the number of processes and devices."""

import json

import jax
import numpy as np
import pytest

from tests.on_processes import evaluations
from tests.pax_compat import launching
from tests.pax_compat.trainer import sequences, tiny

# Not a whole number of batches, whatever the number of hosts.
_COUNT = 1003
_ROWS = 50


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Returns the path of trained weights, and what numpy makes of them."""
  made = tiny.make_program()
  state, _ = tiny.train(made, 20)
  path = tmp_path_factory.mktemp('trained') / 'weights.npz'
  np.savez(path, *map(np.asarray, jax.tree.leaves(state.mdl_vars)))
  return path, _by_numpy(made, state.mdl_vars)


def _by_numpy(made, mdl_vars) -> float:
  """Returns the mean loss of a token, one example after the other."""
  data = sequences.Sequences(count=_COUNT, batch_size=1)
  total = weight = 0.0
  step = jax.jit(lambda batch: made.eval_step(mdl_vars, batch).weighted)
  for index in range(_COUNT):
    batch = data.examples(np.array([index]))
    value, of_it = step(made.put(batch))['log_pplx']
    total += float(value) * float(of_it)
    weight += float(of_it)
  return total / weight


def _metrics(path, count: int, devices: int) -> dict[str, float]:
  outputs = launching.run_on_processes(
    evaluations.print_metrics,
    count,
    devices=devices,
    args=[path, _COUNT, _ROWS],
  )
  found = [json.loads(output.splitlines()[-1]) for output in outputs]
  assert all(of_process == found[0] for of_process in found)
  return found[0]


def test_metrics_agree(trained):
  path, loss = trained
  found = {
    (count, devices): _metrics(path, count, devices)
    for count in (1, 2, 4)
    for devices in (1, 2)
  }
  for (count, _), metrics in found.items():
    batches = metrics.pop('num_batches')
    assert batches == -(-_COUNT // (_ROWS * count))
    # Tokens of a batch: of all together, there are as many.
    metrics['tokens'] = metrics.pop('num_predictions') * batches
  alone = found[1, 1]
  np.testing.assert_allclose(alone['log_pplx'], loss, rtol=1e-6)
  for setting, metrics in found.items():
    assert metrics.keys() == alone.keys()
    for name, value in metrics.items():
      np.testing.assert_allclose(
        value, alone[name], rtol=1e-6, err_msg=f'{name}, {setting}'
      )
