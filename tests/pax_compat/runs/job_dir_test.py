"""Tests of the folder of a run."""

import json
import os
import pathlib
import re
import stat

import pytest

from pax_compat import errors
from pax_compat.runs import job_dir


def test_a_new_folder_is_marked_and_claimed_again(tmp_path):
  folder = tmp_path / 'a' / 'run1'
  job_dir.claim(folder, 'lm.Tiny')
  mark = json.loads((folder / 'experiment.json').read_text())
  assert mark['name'] == 'lm.Tiny'
  assert set(mark) == {'name', 'version', 'created'}
  job_dir.claim(folder, 'lm.Tiny')
  assert json.loads((folder / 'experiment.json').read_text()) == mark
  assert os.listdir(folder) == ['experiment.json']


def test_the_folder_of_another_experiment_is_refused(tmp_path):
  job_dir.claim(tmp_path, 'lm.Tiny')
  before = (tmp_path / 'experiment.json').read_bytes()
  with pytest.raises(errors.UserError) as e:
    job_dir.claim(tmp_path, 'lm.Huge')
  for part in ('lm.Tiny', 'lm.Huge', str(tmp_path)):
    assert part in str(e.value)
  assert (tmp_path / 'experiment.json').read_bytes() == before


def test_other_files_are_left_alone(tmp_path):
  (tmp_path / 'notes.txt').write_text('mine')
  job_dir.claim(tmp_path, 'lm.Tiny')
  assert (tmp_path / 'notes.txt').read_text() == 'mine'
  assert (tmp_path / 'experiment.json').exists()


def test_checkpoints_of_an_unknown_experiment_are_refused(tmp_path):
  manifests = tmp_path / 'checkpoints' / 'manifests'
  manifests.mkdir(parents=True)
  job_dir.claim(tmp_path, 'lm.Tiny')  # empty: no checkpoint
  (tmp_path / 'experiment.json').unlink()
  (manifests / '10.json').write_text('{}')
  with pytest.raises(errors.UserError, match='contains checkpoints'):
    job_dir.claim(tmp_path, 'lm.Tiny')
  assert not (tmp_path / 'experiment.json').exists()


@pytest.mark.parametrize('text', ['', '{"name"', '[]', '{}', '[' * 100_000])
def test_a_damaged_mark_is_refused(tmp_path, text):
  (tmp_path / 'experiment.json').write_text(text)
  with pytest.raises(errors.UserError, match='experiment.json is damaged'):
    job_dir.claim(tmp_path, 'lm.Tiny')
  assert (tmp_path / 'experiment.json').read_text() == text


def test_a_file_is_not_a_folder(tmp_path):
  path = tmp_path / 'file'
  path.write_text('mine')
  for bad in (path, path / 'below'):
    with pytest.raises(errors.UserError, match='cannot be used'):
      job_dir.claim(bad, 'lm.Tiny')
  assert path.read_text() == 'mine'


@pytest.mark.parametrize(
  ('folder', 'message'),
  [
    ('s3://b/run', 's3://b/run cannot be used: Orbax does not write'),
    ('ftp://b/run', 'the scheme ftp:// is unknown; expected gs://BUCKET'),
    ('gs://', 'gs://: expected gs://BUCKET/FOLDER'),
    # What pathlib makes of a URL, which would be a local folder.
    (pathlib.Path('gs://b/run'), 'gs:/b/run is a URL that became a local path'),
    (pathlib.Path('s3://b/run'), 's3:/b/run is a URL that became a local path'),
  ],
)
def test_no_url_becomes_a_local_folder(tmp_path, monkeypatch, folder, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(errors.UserError, match=re.escape(message)):
    job_dir.claim(folder, 'lm.Tiny')
  assert os.listdir(tmp_path) == []


def test_what_must_be_local(tmp_path):
  with pytest.raises(errors.UserError, match='gs://b/run is a URL'):
    job_dir.local_path('gs://b/run')
  assert job_dir.local_path(tmp_path) == tmp_path


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_a_folder_that_cannot_be_written(tmp_path):
  tmp_path.chmod(0o500)
  with pytest.raises(errors.UserError, match='cannot be used'):
    job_dir.claim(tmp_path, 'lm.Tiny')


def test_write_text_keeps_other_content(tmp_path):
  path = tmp_path / 'config.txt'
  for text in ('one\n', 'one\n', 'two\n', 'three\n'):
    job_dir.write_text(path, text)
  assert path.read_text() == 'three\n'
  assert (tmp_path / 'config.txt.1').read_text() == 'one\n'
  assert (tmp_path / 'config.txt.2').read_text() == 'two\n'
  assert len(os.listdir(tmp_path)) == 3


def test_replace_text_is_atomic(tmp_path, monkeypatch):
  path = tmp_path / 'x'
  job_dir.replace_text(path, 'old')
  assert stat.S_IMODE(path.stat().st_mode) == 0o644

  def fail(*args):
    raise OSError('disk full')

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(OSError, match='disk full'):
    job_dir.replace_text(path, 'new')
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['x']


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  assert job_dir.checked_path('~/runs/a') == tmp_path / 'runs/a'
  monkeypatch.chdir(tmp_path)
  assert job_dir.checked_path('runs/~') == tmp_path / 'runs/~'
