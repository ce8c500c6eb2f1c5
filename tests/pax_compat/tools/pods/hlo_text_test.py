"""What is read of the text of a compiled program."""

import doctest

import jax
import jax.numpy as jnp
import pytest

from pax_compat.tools.pods import collectives, hlo_text, memory_traffic
from tests import source_tree

_MESH = {'data': 2, 'mdl': 4}
_TEXT = source_tree.ROOT / 'testdata' / 'hlo_text.txt'


@pytest.fixture(scope='module')
def program():
  return hlo_text.Program(_TEXT.read_text())


def test_the_example():
  tried = doctest.testmod(hlo_text)
  assert tried.attempted and not tried.failed


def test_operations_of_a_loop_run_as_often_as_it(program):
  times = {o.name: times for _, o, times in program.executed()}
  assert times['loop'] == times['sent'] == 1
  assert times['all'] == times['new'] == 8
  assert 'ds' not in times  # Within a fusion.


def test_collectives_name_axes_and_bytes(program):
  found = collectives.of(program, _MESH)
  assert [(c.kind, c.axes, c.devices, c.sent, c.times) for c in found] == [
    ('all-gather', ('mdl',), 4, 64 * 3 / 4, 8),
    ('all-reduce', ('data',), 2, 16, 8),
    ('reduce-scatter', ('mdl',), 4, 48, 8),
    ('collective-permute', ('data',), 2, 128, 1),
  ]
  assert collectives.by_axes(found) == {
    (('data',), 'all-reduce'): (8, 128),
    (('data',), 'collective-permute'): (1, 128),
    (('mdl',), 'all-gather'): (8, 384),
    (('mdl',), 'reduce-scatter'): (8, 384),
  }


def test_slices_count_instead_of_the_arrays_that_they_are_of(program):
  # Each time: a slice is read and written (and a counter read), gathered to
  # memory on the chip, reduced twice, and written into its array.
  index, row = 4, 16
  each = (row + index + row) + row + 2 * row + row + (2 * row + row + index)
  assert memory_traffic.of(program) == 8 * each + 2 * 128


def test_a_program_that_xla_compiled():
  def step(w, xs):
    def body(total, x):
      return total + jnp.tanh(x @ w), ()

    return jax.lax.scan(body, jnp.zeros([4, 4]), xs)[0]

  args = jnp.ones([4, 4]), jnp.ones([6, 4, 4])
  program = hlo_text.Program(jax.jit(step).lower(*args).compile().as_text())
  loops = [
    (o, times) for _, o, times in program.executed() if o.kind == 'while'
  ]
  assert len(loops) == 1
  assert max(times for _, _, times in program.executed()) == 6
