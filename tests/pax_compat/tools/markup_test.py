"""Tests of HTML elements, with escaped strings."""

from pax_compat.tools.markup import joined, tag


def test_texts_and_attributes_are_escaped():
  made = tag('p', '<b>&', tag('i', '"x"'), None, title='"<', data_a_b='1')
  assert made == (
    '<p title="&quot;&lt;" data-a-b="1">&lt;b&gt;&amp;<i>&quot;x&quot;</i></p>'
  )


def test_attributes_without_a_value_and_elements_without_an_end():
  assert tag('input', class_='a', hidden=True, open=False) == (
    '<input class="a" hidden>'
  )


def test_what_is_joined_is_no_text_any_more():
  assert tag('p', joined('<', tag('b'))) == '<p>&lt;<b></b></p>'
