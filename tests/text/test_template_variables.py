"""Which variables a template takes from outside: those without which Jinja may find one undefined."""

from __future__ import annotations

import pytest

from kaishu.text.template_variables import variables_read

CASES = {
    "{{ x }}{{ y.z }}{{ range(3) }}": "x y",
    "{% set x = 1 %}{{ x }}": "",
    "{% set x = x %}": "x",
    "{{ x }}{% set x = 1 %}": "x",
    "{% if not x is defined %}{% set x = 1 %}{% endif %}{{ x }}": "x",
    "{% if a %}{% set x = 1 %}{{ x }}{% endif %}": "a",
    "{% if a %}{% set x = 1 %}{% endif %}{{ x }}": "a x",
    "{% if a %}{% set x = 1 %}{% elif b %}{% set x = 2 %}{% endif %}{{ x }}": "a b x",
    "{% if a %}{% set x = 1 %}{% elif b %}{% set x = 2 %}{% else %}{% set x = 3 %}{% endif %}{{ x }}": "a b",
    "{% for i in s if t %}{{ i }}{{ loop.index }}{% else %}{{ i }}{% endfor %}": "s t i",
    "{% for a, b in s %}{% set x = a %}{{ x }}{% endfor %}{{ b }}": "s b",
    "{% for i in s %}{% set x = i %}{% endfor %}{{ x }}": "s x",
    "{% set n = namespace(a=1) %}{% set n.a = k %}{{ n.a }}": "k",
    "{% set x %}{{ q }}{% endset %}{{ x }}": "q",
    "{% set x | replace(u, 'a') %}{{ q }}{% endset %}{{ x }}": "u q",
    "{% macro m(a, b=c) %}{{ a }}{{ b }}{{ d }}{{ m }}{{ caller }}{{ varargs }}{% endmacro %}{{ m }}{{ a }}": "c d a",
    "{% call(x) m(y) %}{{ x }}{{ z }}{% endcall %}": "m y z",
    "{% with a = b %}{{ a }}{% endwith %}{{ a }}": "b a",
    "{% set (a, b), c = d %}{{ a }}{{ b }}{{ c|default(e) }}": "d e",
    "{% filter replace(u, 'a') %}{{ w }}{% endfilter %}": "u w",
    "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ y }}": "y",
}


@pytest.mark.parametrize("source, names", CASES.items(), ids=CASES)
def test_a_variable_comes_from_outside_where_it_may_be_read_before_it_is_set(source, names):
    assert variables_read(source) == set(names.split())
