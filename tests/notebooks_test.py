"""The notebooks run from the first cell to the last, and show their output."""

import pathlib

import nbclient
import nbformat
import pytest

_FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'docs/notebooks'
_NOTEBOOKS = sorted(path.stem for path in _FOLDER.glob('*.ipynb'))
_PAGE = (_FOLDER.parent / 'notebooks.md').read_text('utf-8')


def _read(name: str) -> nbformat.NotebookNode:
  return nbformat.read(_FOLDER / f'{name}.ipynb', as_version=4)


def test_the_page_lists_them_all():
  assert _NOTEBOOKS
  for name in _NOTEBOOKS:
    assert f'](notebooks/{name}.ipynb)' in _PAGE


@pytest.mark.parametrize('name', _NOTEBOOKS)
def test_is_valid_and_was_run(name):
  notebook = _read(name)
  nbformat.validate(notebook)
  outputs = [c.outputs for c in notebook.cells if c.cell_type == 'code']
  assert any(outputs)
  assert not any(o.output_type == 'error' for found in outputs for o in found)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    # Its commands are those of the migration guide, whose test runs them.
    pytest.param(name, marks=pytest.mark.exhaustive)
    if name == 'migrating'
    else name
    for name in _NOTEBOOKS
  ],
)
def test_runs(name, tmp_path, monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  # A cell that raises, or takes longer, raises here.
  nbclient.NotebookClient(
    _read(name),
    timeout=150,
    kernel_name='python3',
    resources={'metadata': {'path': str(tmp_path)}},
  ).execute()
