"""Tests of when profiles begin and end."""

import jax
import jax.numpy as jnp
import pytest

from pax_compat.trainer import profiling


def _take(folder, steps, **fields):
  """Makes steps; returns those in which the profiler ran, and its files."""
  profile = profiling.Profile(
    folder=folder,
    **dict(first_step=2, num_steps=2, min_seconds=0.0) | fields,
  )
  ran = []
  with profile:
    made = jnp.zeros([])
    for step in range(1, steps + 1):
      profile.before_step(step, made)
      if _is_running():
        ran.append(step)
      made = made + 1
  assert not _is_running()
  return ran, list(folder.rglob('*.xplane.pb'))


def _is_running():
  return profiling.jax._src.profiler._profile_state.profile_session is not None


@pytest.mark.parametrize(
  ('fields', 'steps', 'ran'),
  [
    ({}, 6, [2, 3]),
    (dict(first_step=1, num_steps=1), 6, [1]),
    # It lasts longer where steps are short.
    (dict(min_seconds=60.0), 6, [2, 3, 4, 5, 6]),
    # The loop ends before it.
    (dict(num_steps=9), 4, [2, 3, 4]),
  ],
)
def test_steps_in_a_profile(tmp_path, fields, steps, ran):
  found, files = _take(tmp_path, steps, **fields)
  assert found == ran
  assert len(files) == 1


@pytest.mark.parametrize('fields', [dict(first_step=9), dict(max_num_hosts=0)])
def test_no_profile(tmp_path, fields):
  assert _take(tmp_path, 4, **fields) == ([], [])


@pytest.mark.parametrize('name', ['start_trace', 'stop_trace'])
def test_a_profile_that_fails_ends_nothing(tmp_path, monkeypatch, caplog, name):
  original = getattr(jax.profiler, name)

  def fails(*args, **kwargs):
    if name == 'stop_trace':
      original(*args, **kwargs)
    raise RuntimeError('another one is taken')

  monkeypatch.setattr(jax.profiler, name, fails)
  ran, _ = _take(tmp_path, 6)
  assert ran == ([2, 3] if name == 'stop_trace' else [])
  assert caplog.text.count('RuntimeError: another one is taken') == 1


def test_a_profile_has_what_ran(tmp_path):
  profile = profiling.Profile(
    folder=tmp_path, first_step=1, num_steps=1, min_seconds=0.0, of_host=True
  )

  @jax.jit
  def a_name_to_find(x):
    return x @ x

  x = jnp.ones([64, 64])
  a_name_to_find(x).block_until_ready()
  with profile:
    profile.before_step(1, x)
    y = a_name_to_find(x)
    profile.before_step(2, y)
  [file] = tmp_path.rglob('*.xplane.pb')
  assert b'a_name_to_find' in file.read_bytes()
