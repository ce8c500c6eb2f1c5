"""Tests of completion in bash."""

import subprocess
import sys

import pytest

from pax_compat.cli import completion
from tests.pax_compat import launching, trainer_runs


def _replies(script: str, *words: str) -> list[str]:
  """Returns what bash offers for the last of the words."""
  command = f"""
    pax-compat() {{ {sys.executable} -m pax_compat.main "$@"; }}
    {script}
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _pax_compat
    printf '%s\\n' "${{COMPREPLY[@]}}"
  """
  done = subprocess.run(
    ['bash', '-c', command, 'bash', 'pax-compat', *words],
    env=launching.environment(),
    capture_output=True,
    text=True,
    check=True,
  )
  assert not done.stderr
  return done.stdout.split()


def test_flags_and_files(tmp_path):
  script = completion.script('bash', ['exp', 'job_log_dir', 'eval_on_test'])
  assert _replies(script, '--e') == ['--eval_on_test', '--exp']
  assert _replies(script, '--x') == []
  assert _replies(script, 'e') == []
  (tmp_path / 'run1').mkdir()
  for words in (
    ('--job_log_dir', f'{tmp_path}/r'),
    ('--job_log_dir', '=', f'{tmp_path}/r'),
    (f'--job_log_dir={tmp_path}/r',),
  ):
    assert _replies(script, *words) == [f'{tmp_path}/run1']


@pytest.mark.slow
def test_experiments():
  done, imported = trainer_runs.traced(
    '-m', 'pax_compat.main', '--completion=zsh'
  )
  assert not imported & trainer_runs.SLOW_TO_IMPORT
  zsh, script = done.stdout.split('\n', 1)
  assert 'bashcompinit' in zsh
  found = _replies(script, '--exp', '=', 'lm.python_docs.Tr')
  assert found == [trainer_runs.LINGVO]
  assert _replies(script, '--exp', '=', 'lm.pyton') == []
  assert '--tune' in _replies(script, '--tu')
