"""Tests of `pax_compat.tools.pgle_profile`, with profiles of a CPU.

Only NVIDIA's GPUs have what JAX extracts, so its bytes are made up.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from absl import flags
from absl.testing import flagsaver
from jax.experimental import profiler

from pax_compat import errors
from pax_compat.tools import pgle_profile


@pytest.fixture(scope='module')
def profile(tmp_path_factory):
  """Returns the folder of a run with a profile, and that of the profile."""
  run = tmp_path_factory.mktemp('run')
  with jax.profiler.trace(run / 'summaries' / 'train'):
    jnp.ones([4]).sum().block_until_ready()
  [one] = (run / 'summaries' / 'train' / 'plugins' / 'profile').iterdir()
  return run, one


def _run(**given):
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(**given):
    pgle_profile.main(['pgle_profile'])


def test_the_newest_profile_is_found(profile):
  run, one = profile
  older = one.parent / '2001_01_01_00_00_00'
  older.mkdir()
  (older / 'host.xplane.pb').touch()
  for folder in (run, run / 'summaries' / 'train', one):
    assert pgle_profile.newest_profile(folder) == one


def test_a_profile_of_a_cpu_is_refused(profile, tmp_path):
  """It is read by JAX, and has nothing of a GPU in it."""
  output = tmp_path / 'profile.pb'
  with pytest.raises(errors.UserError, match='taken on an NVIDIA GPU'):
    _run(profile=str(profile[0]), output=str(output))
  assert not output.exists()


def test_what_jax_extracts_is_written(profile, tmp_path, monkeypatch, capsys):
  run, one = profile
  seen = []
  monkeypatch.setattr(
    profiler,
    'get_profiled_instructions_proto',
    lambda folder: seen.append(folder) or b'times',
  )
  _run(profile=str(run))
  _run(profile=str(one), output=str(tmp_path / 'other.pb'))
  assert seen == [str(one)] * 2
  assert (one / 'profile.pb').read_bytes() == b'times'
  assert (tmp_path / 'other.pb').read_bytes() == b'times'
  path = re.search(r'directory_path=(.*)"', capsys.readouterr().out)[1]
  assert path == str(one / 'profile.pb')


@pytest.mark.parametrize(
  'given, message',
  [
    (dict(profile=None), '--profile'),
    (dict(profile='/nowhere'), '/nowhere has no profile; expected'),
  ],
)
def test_errors(given, message):
  with pytest.raises(errors.UserError, match=message):
    _run(**given)


def test_an_output_that_cannot_be_written(profile, monkeypatch):
  monkeypatch.setattr(
    profiler, 'get_profiled_instructions_proto', lambda _: b'times'
  )
  with pytest.raises(errors.UserError, match='cannot be written.*expected'):
    _run(profile=str(profile[0]), output='/nowhere/profile.pb')
