"""Log lines of libraries are hidden, wherever the libraries are."""

import logging
import sys

import pytest

from pax_compat.cli import command_line


def _shown(path: str, level: int = logging.INFO) -> bool:
  record = logging.LogRecord('', level, path, 1, '', None, None)
  return command_line._is_for_users(record)


@pytest.mark.parametrize('folder', ['dist-packages', 'site-packages', 'own'])
def test_verbose_libraries_are_hidden_in_any_folder(
  monkeypatch, tmp_path, folder
):
  monkeypatch.setattr(sys, 'path', ['', str(tmp_path), str(tmp_path / folder)])
  library = str(tmp_path / folder / 'jax/_src/cache.py')
  orbax = str(tmp_path / folder / 'orbax/checkpoint.py')
  assert not _shown(library)
  assert _shown(library, logging.ERROR)
  assert not _shown(orbax, logging.ERROR)
  assert _shown(str(tmp_path / folder / 'my_team/jax/cache.py'))
  assert _shown(str(tmp_path / 'elsewhere/jax/_src/cache.py'))
