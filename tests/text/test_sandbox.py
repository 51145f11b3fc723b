"""Templates that mean harm, and templates that only do unusual things."""

# ruff: noqa: E501, RUF005 - templates read better in one line

from __future__ import annotations

import copy
import tracemalloc
from datetime import datetime
from typing import Any

import pytest

from kaishu.errors import TemplateError
from kaishu.text.budget import Budget
from kaishu.text.template import ChatTemplate

CONTROL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi <there> <|im_end|>"}]


def template_of(source: str, cpu_seconds: float = 1.0) -> ChatTemplate:
    leap_day = datetime(2024, 2, 29, 13, 5)
    return ChatTemplate({"default": source}, control_tokens=CONTROL, now=lambda: leap_day, cpu_seconds=cpu_seconds)


def rendered(source: str, messages: list[dict[str, Any]] = MESSAGES, **more: Any) -> str:
    return template_of(source).render(messages, **more).text


def by_transformers(source: str, messages: list[dict[str, Any]] = MESSAGES, **more: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template([messages], chat_template=source, add_generation_prompt=True, **more)[0][0]


FORBIDDEN = {
    "globals of a helper": "{{ cycler.__init__.__globals__ }}",
    "globals of our helper": "{{ raise_exception.__globals__ }}{{ strftime_now.__code__ }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by subscript": "{{ ''['__class__']['__mro__'] }}",
    "classes by filter": "{{ ''|attr('__class__') }}",
    "classes by map": "{{ ['']|map(attribute='__class__')|first }}",
    "classes by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "classes by format_map": "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
    "classes of content": "{{ messages[0].content.__class__.__mro__ }}",
    "the original of marked text": "{{ messages[0].content._plain ~ 1 }}{{ messages[0].content._plain.upper() }}",
    "include": "{% include 'x' %}",
    "import": "{% import 'x' as y %}",
    "from import": "{% from 'x' import y %}",
    "extends": "{% extends 'x' %}",
    "hidden include": "{% if false %}{% include ['a', 'b'] ignore missing %}{% endif %}",
    "append": "{{ messages.append(1) }}",
    "pop": "{{ messages[0].pop('content') }}",
    "update": "{% do messages[0].update({}) %}",
    "clear by filter": "{{ messages|map('clear')|list }}",
    "set an item": "{% set messages[0].content = 'x' %}",
    "namespace with underscore": "{% set ns = namespace(__class__=1) %}{% set ns.__init__ = 1 %}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "encode": "{{ 'a'.encode('idna') }}",
    "generator frame": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "undefined internals": "{{ nothing.__class__.__init__ }}",
}
BOMBS = {
    "a long loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a nested loop that writes": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "a range too long": "{{ range(10**9)|list|length }}",
    "ranges as lists": "{% for a in range(9999) %}{% set b = range(99999)|list %}{% endfor %}",
    "a filter over ranges": "{% for a in range(9999) %}{{ range(99999)|sum }}{% endfor %}",
    "loops over one range": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
    "slices of a long list": "{% set x = [0] * 900000 %}{% for i in range(99999) %}{% set y = x[::-1] %}{% endfor %}",
    "a recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a branching macro": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "doubling by plus": "{% set n = namespace(s='xxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling by tilde": "{% set n = namespace(s='xxxx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling by join": "{% set n = namespace(s='xxxx') %}{% for i in range(60) %}{% set n.s = [n.s, n.s]|join %}{% endfor %}",
    "doubling by method join": "{% set n = namespace(s='xxxx') %}{% for i in range(60) %}{% set n.s = n.s.join('abc') %}{% endfor %}",
    "doubling by block": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set s %}{{ n.s }}{{ n.s }}{% endset %}"
    "{% set n.s = s %}{% endfor %}",
    "doubling by replace": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s.replace('x', n.s) %}{% endfor %}",
    "doubling by replace filter": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s|replace('x', n.s) %}"
    "{% endfor %}",
    "doubling by format": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
    "doubling by format filter": "{% set n = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set n.s = '%s%s'|format(n.s, n.s) %}{% endfor %}",
    "doubling by str.format": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = '{0}{0}'.format(n.s) %}{% endfor %}",
    "doubling lists": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "lists in lists, written": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "lists in lists, as json": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{{ n.s|tojson }}",
    "lists in lists, as string": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{% set x = n.s|string %}",
    "lists in lists, joined": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{% set x = 'a' ~ n.s %}",
    "lists in lists, compared": "{% set n = namespace(s=1, t=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
    "{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
    "lists in lists, tested": "{% set n = namespace(s=1, t=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
    "{% set n.t = [n.t, n.t] %}{% endfor %}{{ [n.s]|select('eq', n.t)|list|length }}",
    "lists in lists, sorted": "{% set n = namespace(s=1, t=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
    "{% set n.t = [n.t, n.t] %}{% endfor %}{{ [n.s, n.t]|sort|length }}",
    "lists in lists, replaced": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{{ n.s|upper }}",
    "lists in lists, raised": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{{ raise_exception(n.s) }}",
    "lists in lists, searched": "{% set n = namespace(s=1, t=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
    "{% set n.t = [n.t, n.t] %}{% endfor %}{{ [n.s].index(n.t) }}",
    "dicts in dicts": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
    "a text times a number": "{{ 'x' * 10**9 }}",
    "a number times a text": "{{ 10**9 * 'x' }}",
    "a constant text times a number": "{% set x = ('x' * 1000000000)|length %}{{ x }}",
    "a list times a number": "{% set x = [0] * 10**9 %}",
    "a great power": "{{ 10**(10**10) }}",
    "great products": "{% set n = namespace(s=3) %}{% for i in range(60) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "a great width": "{{ '%999999999d' % 1 }}",
    "a great width by star": "{{ '%*d' % (999999999, 1) }}",
    "a great width by filter": "{{ '%999999999d'|format(1) }}",
    "a great width in str.format": "{{ '{:>999999999}'.format(1) }}",
    "a great width as an argument": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "center": "{{ 'x'|center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "expandtabs": "{{ '\t'.expandtabs(999999999) }}",
    "indent": "{{ 'x\ny'|indent(999999999, true) ~ 'x\ny'|indent('x' * 900000) * 9 }}",
    "batch": "{{ [1]|batch(999999999, 'x')|list }}",
    "slice": "{{ [1]|slice(999999999)|list }}",
    "round": "{{ 1.5|round(999999999) }}{{ 10**60**60 }}",
    "sums of lists": "{{ ([[0]] * 100000)|sum(start=[])|length }}",
    "looking for a text in a generator": "{% set s = 'x' * 900000 %}{% set t = ('x' * 899999) ~ 'y' %}"
    "{{ s in ([{'x': t}] * 90000)|map(attribute='x') }}",
    "json indented": "{{ [1]|tojson(indent=999999999) }}",
    "json separated": "{{ ([0] * 9999)|tojson(separators=('x' * 9999, ':')) }}",
    "a date": "{{ strftime_now('%999999999Y') }}",
    "generators": "{{ range(99999)|map('string')|map('length')|sum }}" * 400,
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "deep lists": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "a long source": "x" * 1_000_001,
    "searching a long text": "{% set s = 'x' * 900000 %}{% for i in range(99999) %}{% if 'y' in s %}{% endif %}{% endfor %}",
    "splitting a long text": "{% set s = 'x ' * 450000 %}{% for i in range(99999) %}{% set t = s.split() %}{% endfor %}",
}
# One step of each takes so long that a limit on time alone would be looked at too late.
SLOW_STEPS = {
    "it rounds to more than 20 digits": {
        "round up": "{{ 1 | round(100000000, 'ceil') }}",
        "round down": "{{ 1 | round(3000000, 'floor') }}",
        "round to tens": "{{ 1 | round(-100000000, 'ceil') }}",
        "round by map": "{{ [1] | map('round', 100000000, 'ceil') | list }}",
    },
    "it makes a text of more than": {
        "sums of long lists": "{{ ([[0] * 900000] * 900000)|sum(start=[])|length }}",
        "sums of texts": "{{ (['x' * 99999] * 99)|sum(start='') }}",
        "sorting equal texts from a generator": "{% set s = 'x' * 900000 %}{% set t = ('x' * 899999) ~ 'x' %}"
        "{{ ([{'x': s}, {'x': t}] * 40000)|map(attribute='x')|sort|length }}",
        "telling equal texts from a generator apart": "{% set s = 'x' * 900000 %}{% set t = ('x' * 899999) ~ 'x' %}"
        "{{ ([{'x': s}, {'x': t}] * 40000)|map(attribute='x')|unique|list|length }}",
        "looking for a text in many values": "{% set s = 'x' * 900000 %}{% set t = ('x' * 899999) ~ 'y' %}"
        "{{ s in dict([[1, t], [2, t]]).values() }}",
    },
    "it computes with large numbers": {
        "great quotients": "{% set x = ('f' * 900000)|int(base=16) // ('f' * 450000)|int(base=16) %}",
        "great quotients of literals": "{% set x = 0x" + "f" * 600_000 + " // 0x" + "f" * 300_000 + " %}",
        "great remainders": "{% set x = ('f' * 900000)|int(base=16) % ('f' * 450000)|int(base=16) %}",
        "great differences": "{% set n = namespace(s=0) %}{% for i in range(9999) %}{% set n.s = -n.s - 2**60 - n.s * 2**40 %}{% endfor %}",
    },
    "it looks for a long text in a long text": {
        "stripping many characters": "{% set s = ('a' * 900000).strip('b' * 900000 ~ 'a') %}",
        "trimming many characters": "{% set s = ('a' * 900000)|trim('b' * 900000 ~ 'a') %}",
        "searching backwards": "{{ ('a' * 900000).rfind('a' * 90000 ~ 'b' ~ 'a' * 90000) }}",
        "splitting backwards": "{{ ('a' * 900000).rsplit('a' * 90000 ~ 'b' ~ 'a' * 90000)|length }}",
        "parting backwards": "{{ ('a' * 900000).rpartition('a' * 90000 ~ 'b' ~ 'a' * 90000)|length }}",
    },
}
BROKEN = {
    "syntax": "{% if %}",
    "unclosed": "{{ 'a'",
    "no such filter": "{{ 1|nothing }}",
    "no such function": "{{ nothing() }}",
    "undefined attribute of undefined": "{{ messages[9].role.x }}",
    "a sum of text and number": "{{ 'a' + 1 }}",
    "its own refusal": "{{ raise_exception('Roles must alternate.') }}",
    "division by zero": "{{ 1 / 0 }}",
    "json of what is no json": "{{ namespace|tojson }}",
    "json of undefined": "{{ nothing|tojson }}",
}


@pytest.mark.parametrize("source", FORBIDDEN.values(), ids=FORBIDDEN)
def test_templates_can_not_reach_out(source):
    messages = copy.deepcopy(MESSAGES)
    try:
        shown = rendered(source, messages)
    except TemplateError:
        shown = ""
    assert not any(word in shown for word in ("class", "function", "module", "object", "HI <")), shown
    assert messages == MESSAGES


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_bombs_end_in_an_error(source):
    with pytest.raises(TemplateError, match="The chat template"):
        template_of(source, cpu_seconds=0.05).render(MESSAGES)


SLOW_STEP_CASES = [
    pytest.param(source, reason, id=name) for reason, sources in SLOW_STEPS.items() for name, source in sources.items()
]


@pytest.mark.parametrize("source, reason", SLOW_STEP_CASES)
def test_what_one_step_would_cost_is_asked_for_before_it_is_taken(source, reason):
    with pytest.raises(TemplateError, match=reason):
        template_of(source, cpu_seconds=600).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('{0:9999}' * 9999).format(1) }}",
        "{{ ('%(a)9999d' * 9999) % {'a': 1} }}",
        "{{ ('%(a).9999f' * 9999) | format(a=1.5) }}",
        "{{ ('{a:9999}' * 9999).format_map({'a': 1}) }}",
        "{{ ('{0:\u0669\u0669\u0669\u0669}' * 9999).format(1) }}",  # digits of Arabic, which Python reads too
    ],
)
def test_many_great_widths_are_refused_before_they_take_memory(source):
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError, match="it makes a text of more than"):
            template_of(source, cpu_seconds=600).render(MESSAGES)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    ["{{ 'z' in messages|map(attribute='role') }}", "{{ ([[]] * 1000)|sum(start=[]) }}"],
)
def test_each_item_counts_as_a_step(source, monkeypatch):
    steps: list[Budget] = []
    spend = Budget.spend
    monkeypatch.setattr(Budget, "spend", lambda self: steps.append(self) or spend(self))
    rendered(source, MESSAGES * 1000)
    assert len(steps) >= 1000


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_broken_templates_are_the_templates_error(source):
    with pytest.raises(TemplateError, match="The chat template 'default' fails"):
        rendered(source)


def test_a_templates_own_refusal_is_passed_on():
    with pytest.raises(TemplateError, match=r"Roles must alternate\.$"):
        rendered(BROKEN["its own refusal"])


USUAL = {
    "trimmed blocks": "{% for m in messages %}\n  {% if true %}\n  x\n  {% endif %}\n{% endfor %}\n",
    "loop controls": "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "loop variables": "{% for i in [3, 1, 2] %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}"
    "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}",
    "loop with condition": "{% for k, v in {'a': 1, 'b': 2}.items() if v > 1 %}{{ k }}{{ v }}{% else %}none{% endfor %}",
    "loop over nothing": "{% for i in nothing %}{{ i }}{% else %}none{% endfor %}",
    "loop over text": "{% for c in messages[0].content %}{{ c if c == '<' else '.' }}{% endfor %}",
    "recursive loop": "{% for a in [[1, [2]], 3] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}",
    "macro": "{% macro m(x, y='d') %}[{{ x }}{{ y }}{{ varargs }}{{ caller() if caller }}]{% endmacro %}{{ m(messages[0].content) }}"
    "{% call m(1, 2, 3) %}body{% endcall %}",
    "test on a macro's text": "{% macro m(x) %}{{ x }}!{% endmacro %}{{ '<' in m(messages[0].content) }}",
    "test on a block": "{% set b %}{{ messages[0].content }}!{% endset %}{{ '<there>' in b }}{{ b.split('<')|length }}",
    "test on joined text": "{{ '<there>' in ('a' ~ messages[0].content) }}{{ '<' in [messages[0].content]|join('-') }}"
    "{{ '<' in ', '.join([messages[0].content]) }}{{ '<' in ('%s' % messages[0].content) }}",
    "namespace": "{% set ns = namespace(a=1, s='') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "slices": "{{ messages[::-1]|length }}{{ messages[0].content[3:9] }}{{ messages[-1].role }}{{ messages[0]['content'][:2] }}",
    "json": "{{ messages|tojson }}{{ {'b': [1.5, none, true], 'a': \"it's <b>\"}|tojson }}",
    "json with options": "{{ {'b': 'é<', 'a': {'c': []}}|tojson(indent=2, ensure_ascii=true, sort_keys=true) }}"
    "{{ messages|tojson(separators=(',', ':'), ensure_ascii=true) }}{{ '𠮷<\u2028' | tojson(ensure_ascii=True) }}",
    "python's form of a dict": "{{ messages[0] }}{{ [messages[0].content, 'it\\'s'] }}",
    "filters": "{{ ' <a> '|trim|upper }}{{ messages|map(attribute='role')|join(', ') }}{{ 'a<b'|replace('<', '>') }}"
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ [3, 1]|sort|first }}{{ 'a\nb'|indent(2) }}"
    "{{ {'b': 1}|dictsort }}{{ none|default('x', true) }}{{ '5'|int + 1 }}{{ 'a b'|title }}{{ [1, 1]|unique|list }}",
    "replace in content": "{{ messages[0].content|replace('<', '(') }}{{ messages[0].content.replace('<there>', 'T') }}",
    "escape": "{{ messages[0].content|e }}{{ '<'|escape }}{{ '<b>'|safe }}",
    "indent content": "{{ (messages[0].content ~ '\n<x>\n\ny')|indent(3) }}|{{ 'a\n\nb'|indent(2, true, true) }}|{{ 'a\nb'|indent('> ') }}",
    "tests": "{{ 'x' is string }}{{ messages is sequence }}{{ nothing is defined }}{{ messages[0] is mapping }}{{ 3 is odd }}"
    "{{ messages[0].content is string }}{{ none is none }}{{ true is true }}{{ 'a' is in ['a'] }}{{ 1 is number }}",
    "conditional expression": "{{ 'a' if messages[0].role == 'user' and not tools else 'b' }}{{ messages[0].nothing }}",
    "arithmetic": "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 'ab' * 3 }}{{ [1] + [2] }}{{ 1 - 2 / 4 }}{{ '%s-%03d' % ('a', 7) }}",
    "rounding": "{{ 2.567|round }}{{ 2.567|round(2) }}{{ 2.567|round(1, 'floor') }}{{ 1234|round(-2, 'ceil') }}{{ 7|round(method='ceil') }}",
    "sums": "{{ [1, 2.5]|sum }}{{ [{'a': 1}, {'a': 2}]|sum(attribute='a', start=10) }}{{ []|sum }}{{ [[1], [2]]|sum(start=[]) }}"
    "{{ messages|map(attribute='content')|map('length')|sum }}",
    "trimming": "{{ ' a '|trim }}{{ 'xax'|trim('x') }}{{ 'xax'|trim(chars='x') }}{{ messages[0].content|trim('<|>') }}{{ 5|trim }}",
    "searching generators": "{{ 'user' in messages|map(attribute='role') }}{{ 'x' not in messages|map(attribute='role') }}"
    "{{ 'user' in messages[0].values() }}{{ 'role' in messages[0].keys() }}{{ 3 in range(5) }}{{ 3 in range(2) }}"
    "{% set g = messages|selectattr('role') %}{{ g == none }}{{ g is ne none }}{{ g|list|length }}"
    "{{ messages|map(attribute='role')|unique|list }}{{ messages|map(attribute='content')|sort|first }}",
    "searching backwards": "{{ messages[0].content.rfind('<') }}{{ messages[0].content.rsplit('<', 1)[-1] }}{{ 'a-b-c'.rpartition('-') }}",
    "generation tag": "{% for m in messages %}{% generation %}{{ m.content }}{% set x = 1 %}{% endgeneration %}{% endfor %}{{ x }}",
    "helpers": "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}{{ dict(a=1).a }}",
    "text methods": "{{ messages[0].content.split(' ')[1].strip('<>') }}{{ ' a '.strip() }}{{ 'aXb'.lower().title().capitalize() }}"
    "{{ 'a,b'.partition(',') }}{{ 'abc'.find('c') }}{{ 'x'.isdigit() }}{{ '{} {a}'.format(1, a='<') }}",
    "special characters": "{{ messages[0].content + '\ue000\ud7ff' }}",
}


@pytest.mark.parametrize("source", USUAL.values(), ids=USUAL)
def test_what_templates_usually_do_comes_out_as_in_transformers(source):
    assert rendered(source) == by_transformers(source)


def test_a_refusal_that_quotes_outside_text_can_be_shown():
    with pytest.raises(TemplateError, match=r"No hi <there> <\|im_end\|>, please") as caught:
        rendered("{{ raise_exception('No ' + messages[0].content + ', please') }}")
    caught.value.message.encode()


def test_the_clock_is_in_the_template_and_can_be_set():
    assert rendered("{{ strftime_now('%d %b %Y') }}") == "29 Feb 2024"


def test_outside_text_stays_outside_through_every_way_of_writing_it():
    ways = "{% set c = messages[0].content %}{% macro m(x) %}{{ x }}{% endmacro %}" + "|".join(
        ["{{ c }}", "{{ c ~ '' }}", "{{ m(c) }}", "{{ c|trim }}", "{{ c|tojson }}", "{{ [c] }}", "{{ '%s' % c }}"]
        + ["{{ c|upper }}", "{{ [c]|join('') }}", "{{ '{}'.format(c) }}", "{{ c[1:] }}", "{{ c.split('z')[0] }}"]
        + [
            "{{ c|replace('hi', '') }}",
            "{{ [c]|tojson(ensure_ascii=true, indent=1) }}",
            "{{ c|list|join }}",
            "{{ messages }}",
        ]
        + ["{{ c|reverse|reverse }}", "{{ c|string }}", "{{ c|safe }}", "{{ c|indent(2) }}", "{{ c.splitlines()[0] }}"]
    )
    prompt = template_of(ways).render(MESSAGES)
    assert prompt.text.count("<") > 40
    assert {i for i, letter in enumerate(prompt.text) if letter == "<"} == prompt.outside


def test_two_renderings_at_once_do_not_disturb_one_another():
    from concurrent.futures import ThreadPoolExecutor

    template = template_of("{% for i in range(200) %}{{ messages[0].content }}{{ i }};{% endfor %}")
    with ThreadPoolExecutor(4) as pool:
        texts = [f"<{i}>" * i for i in range(40)]
        prompts = list(pool.map(lambda text: template.render([{"role": "user", "content": text}]).text, texts))
    assert prompts == ["".join(f"{text}{i};" for i in range(200)) for text in texts]


def test_ten_thousand_messages_and_a_long_one_are_not_a_bomb():
    source = (
        "{% set ns = namespace(n=0, seen=[]) %}{% for m in messages %}{% if m.role == 'user' and '<x>' not in m.content %}"
        "{% set ns.n = ns.n + 1 %}{% endif %}{{ '<|im_start|>' + m.role + m.content|trim + '<|im_end|>' }}{% endfor %}{{ ns.n }}"
    )
    assert rendered(source, MESSAGES * 10_000).endswith("10000")
    assert len(rendered(source, [{"role": "user", "content": "<a>" * 1_000_000}])) > 3_000_000
