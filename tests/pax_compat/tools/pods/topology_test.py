"""TPU topologies."""

import doctest
import importlib.util

import pytest

from pax_compat import errors
from pax_compat.tools.pods import topology


def test_the_example():
  tried = doctest.testmod(topology)
  assert tried.attempted and not tried.failed


@pytest.mark.parametrize(
  'name, message',
  [
    ('v5:2x2', "unknown kind of TPU 'v5'"),
    ('v4:2x2', 'needs 3 numbers of chips; expected, for example, v4:2x2x1'),
    ('v5e:2x0', 'needs 2 numbers of chips; expected, for example, v5e:2x2'),
    ('v4', 'needs 3 numbers'),
  ],
)
def test_what_is_not_a_topology_is_an_error(name, message):
  with pytest.raises(errors.UserError, match=message):
    topology.parse(name)


@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is not None, reason='libtpu is installed'
)
def test_without_libtpu_the_error_says_what_to_install():
  with pytest.raises(errors.UserError, match=r'pax-compat\[tpu\]'):
    topology.create('v4:2x2x1')
