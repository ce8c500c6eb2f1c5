"""HTML elements; strings are escaped."""

import html


class Html(str):
  """HTML, which is not escaped."""

  __slots__ = ()


# Of all pages.
_STYLE = Html("""
:root { color-scheme: light dark; --line: #8885; --soft: #888; }
body { margin: 0 auto; max-width: 85rem; padding: 1.5rem 1rem 4rem;
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .2rem .9rem .2rem 0;
  border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; }
.soft { color: var(--soft); }
""")
# Elements without an end tag.
_EMPTY = ('input', 'meta')


def tag(name: str, /, *children: str | None, **attributes: str | bool) -> Html:
  """Returns an element.

  Args:
    name: of the element.
    *children: `Html`; strings, which are escaped; None for nothing.
    **attributes: `class_` stands for `class`, `data_x` for `data-x`. True is an
      attribute without a value, False none.
  """
  given = ''.join(
    _attribute(key.rstrip('_').replace('_', '-'), value)
    for key, value in attributes.items()
    if value is not False
  )
  if name in _EMPTY:
    return Html(f'<{name}{given}>')
  return Html(f'<{name}{given}>{joined(*children)}</{name}>')


def joined(*children: str | None) -> Html:
  """Returns children one after the other; see `tag`."""
  return Html(
    ''.join(
      child if isinstance(child, Html) else html.escape(child)
      for child in children
      if child is not None
    )
  )


def page(title: str, style: Html, *children: str) -> str:
  """Returns an HTML page of one file.

  Args:
    title: of the page, also its first heading.
    style: its style sheet, in addition to that of all pages.
    *children: what comes after the heading; see `tag`.
  """
  head = tag(
    'head',
    tag('meta', charset='utf-8'),
    tag('meta', name='viewport', content='width=device-width'),
    tag('title', title),
    tag('style', joined(_STYLE, style)),
  )
  body = tag('body', tag('h1', title), *children)
  return f'<!doctype html>\n{tag("html", head, body, lang="en")}\n'


def _attribute(name: str, value: str | bool) -> str:
  return f' {name}' if value is True else f' {name}="{html.escape(value)}"'
