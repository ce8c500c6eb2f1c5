"""HTML elements; strings are escaped."""

import html


class Html(str):
  """HTML, which is not escaped."""

  __slots__ = ()


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
    style: a style sheet.
    *children: what comes after the heading; see `tag`.
  """
  head = tag(
    'head',
    tag('meta', charset='utf-8'),
    tag('meta', name='viewport', content='width=device-width'),
    tag('title', title),
    tag('style', style),
  )
  body = tag('body', tag('h1', title), *children)
  return f'<!doctype html>\n{tag("html", head, body, lang="en")}\n'


def _attribute(name: str, value: str | bool) -> str:
  return f' {name}' if value is True else f' {name}="{html.escape(value)}"'
