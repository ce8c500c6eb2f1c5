"""Tests of the report on a terminal."""

import doctest

import pytest

from adaptors.migrate.findings import Status
from adaptors.migrate.report import terminal
from tests.adaptors.migrate import found


def test_the_table_is_sorted_and_fits_the_terminal():
  text = terminal.table(
    [
      found.experiment('lm.fine.Model'),
      found.experiment('lm.b.Broken', Status.IMPOSSIBLE),
      found.experiment('lm.b.Own', Status.BRIDGED, issues=2),
    ],
    width=72,
  )
  heads, *rows = text.splitlines()
  assert heads.split() == [
    *('experiment', 'runs', 'parameters', 'per', 'device', 'next', 'step'),
  ]
  assert [row.split()[0] for row in rows[:3]] == [
    *('lm.b.Broken', 'lm.b.Own', 'lm.fine.Model'),
  ]
  assert max(map(len, rows)) <= 72 and rows[0].endswith('...')
  assert rows[2].split()[1:5] == ['native', '42', '340', 'B']
  assert rows[-1] == '3 experiment(s): 1 native, 1 bridged, 1 impossible'


def test_details_have_everything():
  text = terminal.details(found.experiment('lm.b.Own', Status.BRIDGED, 1))
  for expected in (
    *('lm.b.Own: bridged', 'task: my.Task, bridged', '--exp=lm.b.Own'),
    f'task.lm.size_0 (my.Lm): {found.SCRIPT} is not translated',
    *(f'do without {found.SCRIPT}', '- task my.Task 42', '  + x[0-2] my.X 30'),
    *('340 B on each device (1 x 2 devices (data, mdl))', '680 B in total'),
    *('weights 168 B', 'optimizer 336 B', 'activations', 'checkpoints: NO: no'),
    *('input Train: my.Input, records', 'batches of 8 x 16, 4 examples'),
    *('every 5 steps', 'has no effect here'),
  ):
    assert expected in text, expected


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
  assert terminal.format_count(number) == text


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
  assert terminal.format_size(number) == text


def test_meshes():
  assert (
    terminal.format_mesh({'data': 1}) == 'one device, or replicated on several'
  )
  assert (
    terminal.format_mesh({'data': 4, 'mdl': 2}) == '4 x 2 devices (data, mdl)'
  )


def test_shapes():
  few = [(8, 16), (4, None)]
  assert terminal.format_batches(few) == 'batches of 8 x 16, 4 examples'
  many = [(2**i, 2 * 2**i) for i in range(6)]
  assert (
    terminal.format_batches(many) == 'batches of 1 to 32 examples of 2 to 64'
  )
  many = [(i, None) for i in range(1, 9)]
  assert terminal.format_batches(many) == 'batches of 1 to 8 examples'
  assert not terminal.format_batches([])


def test_the_examples():
  result = doctest.testmod(terminal)
  assert result.attempted and not result.failed
