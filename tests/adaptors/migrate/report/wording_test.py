"""Numbers as people read them."""

import pytest

from adaptors.migrate.report import wording


@pytest.mark.parametrize(
  'number,text',
  [
    (None, '?'),
    (0, '0'),
    (999, '999'),
    (1000, '1.00K'),
    (11_906_368, '11.9M'),
    (999_960, '1.00M'),
    (174_000_000_000, '174B'),
    (1.1e12, '1.10T'),
    (5e15, '5000T'),
  ],
)
def test_counts(number, text):
  assert wording.count(number) == text


@pytest.mark.parametrize(
  'number,text',
  [
    (None, '?'),
    (1000, '1000 B'),
    (1024, '1.00 KiB'),
    (19.86 * 2**30, '19.9 GiB'),
    (1.5 * 2**50, '1.50 PiB'),
  ],
)
def test_sizes(number, text):
  assert wording.size(number) == text


def test_meshes():
  assert wording.mesh({'data': 1}) == 'one device, or whole on each of several'
  assert wording.mesh({'data': 4, 'mdl': 2}) == '4 x 2 devices (data, mdl)'


def test_shapes():
  assert wording.shapes([(8, 16), (4, None)]) == '8 x 16, 4 examples'
  many = [(2**i, 2 * 2**i) for i in range(6)]
  assert wording.shapes(many) == '1 to 32 examples of 2 to 64'
  assert wording.shapes([(i, None) for i in range(1, 9)]) == '1 to 8 examples'
