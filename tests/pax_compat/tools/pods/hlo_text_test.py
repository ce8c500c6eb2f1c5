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


_TWO_SLICES = """HloModule step, is_scheduled=true

ENTRY %main (a: f32[4], b: bf16[8,128]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %b = bf16[8,128]{1,0} parameter(1)
  %token = token[] after-all()
  %kernel = f32[4]{0} custom-call(%a), frontend_attributes={kernel_metadata={
"xprof_metadata":"{}"
}}, metadata={op_name="splash"}
  %sent = (bf16[8,128]{1,0:T(8,128)(2,1)}, u32[], token[]) send(%b, %token), \
channel_id=3, frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %all = f32[8]{0} all-gather(%kernel), replica_groups={{0,2},{1,3}}
  %pair = (f32[4]{0}, /*index=1*/f32[8]{0}) tuple(%a, /*index=1*/%all)
  ROOT %sum = f32[4]{0} add(%a, /*index=1*/%kernel)
}
"""


def test_transfers_between_slices_are_sends_or_groups_of_several_slices():
  program = hlo_text.Program(_TWO_SLICES)
  mesh, slices = {'replica': 2, 'data': 2}, [0, 0, 1, 1]
  found = collectives.of(program, mesh, slices)
  assert [(c.kind, c.axes, c.sent, c.between_slices) for c in found] == [
    ('all-reduce', ('replica',), 8 * 128 * 2, True),
    ('all-gather', ('replica',), 16, True),
  ]
  assert not any(c.between_slices for c in collectives.of(program, mesh)[1:])
  assert set(collectives.by_axes(found)) == {
    (('replica',), 'all-reduce between slices'),
    (('replica',), 'all-gather between slices'),
  }


def test_numbers_of_elements_and_lines_of_a_kernel_are_no_operations():
  main = hlo_text.Program(_TWO_SLICES).computations['main']
  assert main['sum'].operands == ('a', 'kernel')
  assert main['pair'].operands == ('a', 'all')


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
