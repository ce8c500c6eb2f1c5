"""Writes docs/flags.md, from the flags as they are defined.

    python -m tests.flags_page

The test of `pax_compat.cli.pax_flags` compares the two.
"""

import pathlib

from absl import flags

from pax_compat import main
from pax_compat.cli import pax_flags

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'flags.md'
# Pax's flags that are defined in other modules than `pax_flags`.
_ELSEWHERE = (
  'exp',
  'job_log_dir',
  'multiprocess_gpu',
  'server_addr',
  'num_hosts',
  'host_idx',
)
# An option of experiments that read SeqIO tasks, which need an extra.
_TFDS = 'Folder of TFDS datasets, for experiments that read SeqIO tasks.'
_HEAD = """# Flags

What becomes of each flag of Pax's `main.py`. `python -m pax_compat.main --help`
lists all flags, those of this project too. The tables are written by
`python -m tests.flags_page`.

A flag with an effect does what the table says. A flag that is always so is
accepted, and a line at the start of the run repeats the table. A flag that is
refused is an error (exit status 2) that says what to use instead; Pax's default
value of it is accepted.

Flags of JAX, such as `--jax_debug_nans` and `--jax_platforms=cpu`, are JAX's
own, and so are absl's `--alsologtostderr`, `--v` and `--verbosity`. Environment
variables (`XLA_FLAGS`, `LIBTPU_INIT_ARGS`, `JAX_*`) reach JAX as they are.

"""


def text() -> str:
  """Returns the content of the page."""
  tables = [_table('Defined for experiments, folders and hosts', _elsewhere())]
  for verdict, title in (
    (pax_flags.Verdict.EFFECT, 'With an effect'),
    (pax_flags.Verdict.ALWAYS, 'Always so'),
    (pax_flags.Verdict.REFUSED, 'Refused'),
  ):
    rows = [
      (flag.name, _sentence(flag.text))
      for flag in pax_flags.TABLE
      if flag.verdict is verdict
    ]
    tables.append(_table(title, rows))
  return _HEAD + '\n'.join(tables)


def _elsewhere() -> list[tuple[str, str]]:
  rows = [(name, flags.FLAGS[name].help) for name in _ELSEWHERE]
  return [*rows, ('tfds_data_dir', _TFDS)]


def _sentence(text: str) -> str:
  text = text[0].upper() + text[1:]
  return text if text.endswith('.') else f'{text}.'


def _table(title: str, rows: list[tuple[str, str]]) -> str:
  lines = [f'## {title}', '', '| flag | |', '|---|---|']
  for name, described in rows:
    described = ' '.join(described.split()).replace('|', '\\|')
    lines.append(f'| `--{name}` | {described} |')
  return '\n'.join(lines) + '\n'


if __name__ == '__main__':
  assert main
  PAGE.write_text(text(), encoding='utf-8')
