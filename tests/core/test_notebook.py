"""Programs as HTML: well formed, with everything in it that the text has, and lines of the user's."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


def stepped(x):
    def step(carry, row):
        return carry + jnp.tanh(row), jnp.where(row < 0, "<" == "<", carry)

    return lax.scan(step, jnp.zeros(3), x)


class Reader(HTMLParser):
    """Checks that elements nest, and collects their text and names."""

    def __init__(self, html):
        super().__init__()
        self.opened, self.names, self.text = [], [], ""
        self.feed(html)
        self.close()
        assert not self.opened

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)
        self.names.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


X = np.ones((4, 3), np.float32)


@pytest.mark.parametrize("made", [
    anima.make_jaxpr(stepped)(X), anima.make_jaxpr(stepped)(X).jaxpr, anima.jit(stepped).trace(X),
    anima.jit(stepped).lower(X), anima.jit(stepped).lower(X).compile()], ids=lambda x: type(x).__name__)
def test_every_stage(made):
    read = Reader(made._repr_html_())
    for word in ("scan", "tanh", "reverse=False", "test_notebook.py", "f32[4,3]", "lt"):
        assert word in read.text
    assert read.names.count("table") >= 2 and "details" in read.names


def test_compiled_tells_costs():
    text = Reader(anima.jit(stepped).lower(X).compile()._repr_html_()).text
    assert "flops" in text and "temp_size_in_bytes" in text and "kernel" in text


def test_a_program_of_nothing():
    assert Reader(anima.make_jaxpr(lambda: ())()._repr_html_()).names == ["div", "pre", "pre"]


def test_text_is_quoted():
    def f(x):
        return x + 1

    f.__name__ = "<b>&"
    html = anima.make_jaxpr(anima.jit(f))(1.0)._repr_html_()
    assert "&lt;b&gt;&amp;" in html and "<b>" not in html


def test_places_are_links_of_the_form_that_is_asked_for():
    program = anima.make_jaxpr(lambda x: x + 1)(1.0)
    assert "<a " not in program._repr_html_()
    with anima.config.option("source_url_schema")('ed://{file}?line={line}&"'):
        html = program._repr_html_()
    line = program.eqns[0].source.line
    assert f'<a href="ed://{__file__}?line={line}&amp;&quot;" target="_blank">test_notebook.py:{line}' in html
    assert Reader(html).names.count("a") == 1
