"""Tests of the report on a terminal."""

import dataclasses
import doctest

import pytest

from adaptors.migrate.findings import Status, Trial
from adaptors.migrate.report import terminal
from tests.adaptors.migrate import found


def test_the_table_is_sorted_and_fits_the_terminal():
  width = 110
  text = terminal.table(
    [
      found.experiment('lm.fine.Model'),
      found.experiment('lm.b.Broken', Status.IMPOSSIBLE),
      found.experiment('lm.b.Own', Status.BRIDGED, issues=2),
    ],
    width=width,
  )
  heads, *rows = text.splitlines()
  assert heads.split() == [
    *('experiment', 'runs', 'traced', 'parameters', 'per', 'device'),
    *('next', 'step'),
  ]
  named = [row for row in rows[:-2] if not row.startswith(' ')]
  assert [row.split()[0] for row in named] == [
    *('lm.b.Broken', 'lm.b.Own', 'lm.fine.Model'),
  ]
  assert max(map(len, rows)) <= width
  # Nothing is left out.
  column = heads.index('next step')
  first = ' '.join(row[column:] for row in rows[: rows.index(named[1])])
  assert first == f'repair it: {found.SCRIPT}'
  assert named[2].split()[1:6] == ['native', 'not', 'traced', '42', '340']
  assert rows[-1] == '3 experiment(s): 1 native, 1 bridged, 1 impossible'


def test_trials():
  failed = Trial(problem='the loss\n is odd')
  ran = Trial(seconds=12.4, losses=(2.5, 2.0, 1.25), eval_losses=('nan',))
  text = terminal.trials(
    [
      dataclasses.replace(found.experiment('lm.a.Ran'), trial=ran),
      dataclasses.replace(found.experiment('lm.b.Failed'), trial=failed),
      found.experiment('lm.c.NotTried'),
    ],
    width=120,
  )
  _, one, other, _, last = text.splitlines()
  assert one.split() == 'lm.a.Ran native ran yes 12 2.5 to 1.25 nan'.split()
  assert other.split()[1:5] == ['native', 'FAILED', 'NO', '?']
  assert other.endswith('the loss is odd')
  assert last == 'report and run agree on 1 of 2'


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
