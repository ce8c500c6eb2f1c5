"""The results of an inspection as an HTML page: one file, no network."""

from collections.abc import Sequence

from pax_compat.tools import inspecting, inspection_text, markup
from pax_compat.tools.markup import Html, joined, tag

_COLOURS = 6
_STYLE = Html("""
.token { display: inline-block; font-family: ui-monospace, monospace;
  font-size: .85em; padding: 0 .2em; margin: 1px; border-radius: 3px;
  background: #8882; white-space: pre; }
.padding { opacity: .35; }
.zero-weight td { color: var(--soft); }
.warning { border-left: 4px solid #d33; padding-left: .6rem; }
.segment0 { background: #3b82f640; } .segment1 { background: #f59e0b40; }
.segment2 { background: #10b98140; } .segment3 { background: #ec489940; }
.segment4 { background: #8b5cf640; } .segment5 { background: #84cc1640; }
""")


def page(
  name: str, found: Sequence[inspecting.Dataset], warnings: Sequence[str]
) -> str:
  """Returns the page.

  Args:
    name: of the experiment.
    found: results of its datasets.
    warnings: problems of all datasets together.
  """
  return markup.page(
    f'Data of {name}',
    _STYLE,
    tag(
      'p',
      'Pale tokens are padding, and packed sequences have different colours;'
      ' point at a token to see its position and id.',
      class_='soft',
    ),
    *map(_warning, warnings),
    *map(_dataset, found),
  )


def _warning(text: str) -> Html:
  return tag('p', text, class_='warning')


def _dataset(found: inspecting.Dataset) -> Html:
  specs = [
    tag('tr', tag('td', name), tag('td', f'{dtype}{list(shape)}'))
    for name, (shape, dtype) in found.specs.items()
  ]
  batches = [_batch(*numbered) for numbered in enumerate(found.batches)]
  shards = found.shards and tag('p', inspection_text.of_shards(found.shards))
  return tag(
    'section',
    tag('h2', found.config.name),
    tag('p', inspection_text.evaluation_of(found.config)),
    *map(_warning, found.warnings),
    shards,
    tag('table', *specs),
    *batches,
  )


def _batch(number: int, batch: inspecting.Batch) -> Html:
  columns = ['example', 'weight', *(tokens.field for tokens in batch.tokens)]
  heads = [tag('th', name) for name in (*columns, *batch.scalars)]
  rows = [
    tag(
      'tr',
      tag('td', str(row)),
      tag('td', f'{weight:g}'),
      *(tag('td', _tokens(tokens, row)) for tokens in batch.tokens),
      *(tag('td', texts[row]) for texts in batch.scalars.values()),
      class_='' if weight else 'zero-weight',
    )
    for row, weight in enumerate(batch.weights)
  ]
  table = tag('table', tag('tr', *heads), *rows)
  return joined(
    tag('h3', f'Batch {number}'),
    tag('p', inspection_text.described(batch)),
    tag('div', table, class_='scroll'),
  )


def _tokens(tokens: inspecting.Tokens, row: int) -> Html:
  return joined(
    *(
      tag(
        'span',
        piece or ' ',
        class_=_class_of(tokens, row, position),
        title=f'{position}: {tokens.ids[row, position]}',
      )
      for position, piece in enumerate(tokens.pieces[row])
    )
  )


def _class_of(tokens: inspecting.Tokens, row: int, position: int) -> str:
  if not tokens.is_token[row, position]:
    return 'token padding'
  if tokens.segments is None:
    return 'token'
  segment = int(tokens.segments[row, position]) - 1
  return f'token segment{segment % _COLOURS}'
