"""The report on a terminal."""

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
    *('experiment', 'runs', 'parameters', 'per', 'device', 'what', 'to'),
    *('do', 'next'),
  ]
  assert [row.split()[0] for row in rows[:3]] == [
    *('lm.b.Broken', 'lm.b.Own', 'lm.fine.Model'),
  ]
  assert max(map(len, rows)) <= 72 and rows[0].endswith('...')
  assert rows[2].split()[1:5] == ['native', '42', '340', 'B']
  assert rows[-1] == '3 experiment(s): 1 native, 1 bridged, 1 impossible'


def test_details_have_everything():
  text = terminal.details(found.experiment('lm.b.Own', Status.BRIDGED, 1))
  for told in (
    *('lm.b.Own: bridged', 'task: my.Task, bridged', '--exp=lm.b.Own'),
    f'task.lm.size_0 (my.Lm): {found.SCRIPT} is not translated',
    *(f'do without {found.SCRIPT}', '- task my.Task 42', '  + x[0-2] my.X 30'),
    *('340 B on each device (1 x 2 devices (data, mdl))', '680 B in all'),
    *('weights 168 B', 'optimizer 336 B', 'activations', 'checkpoints: NO: no'),
    *('input Train: my.Input, records', 'batches of 8 x 16, 4 examples'),
    *('every 5 steps', 'has no effect here'),
  ):
    assert told in text, told
