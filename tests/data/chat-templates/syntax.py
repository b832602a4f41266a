#!/usr/bin/env python3
"""Small templates with what jinja2 renders for them: python3 syntax.py > syntax.json (needs jinja2 3.1).

The environment is the one that chat templates get: immutable sandbox, trim_blocks, lstrip_blocks, loopcontrols,
tojson without escaping. Rows: [template, text], text null where jinja2 raises."""
import json, sys
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARS = json.loads(r'''{"s": "Hello, World", "u": "Ünïcödé ß 你好 👩", "e": "", "n": null, "i": 7, "z": 0, "f": 2.5, "t": true,
 "l": [3, 1, 2], "w": ["b", "A", "c"], "d": {"b": 1, "a": "x", "items": 5, "k y": [1]}, "nest": {"a": {"b": [{"c": "deep"}]}},
 "p": [{"name": "Al", "age": 30, "on": true}, {"name": "bo", "age": 25, "on": false}, {"name": "Cy", "age": 30}],
 "ml": "one\n two\n\nthree\n", "q": "it's \"q\" \\ \n\t\u0001\u00ad", "html": "<b>&'\"</b>"}''')

EXPR = r"""
1+2*3 | (1+2)*3 | 2**3**2 | -2**2 | 7//2 | -7//2 | 7%3 | -7%3 | 7%-3 | 7/2 | 6/2 | 1e3 | 1e16 | 1.5e-7 | 0.1+0.2 | 100000000000000000000.0 | 1_000 | 0x1F | 5.0//2 | -5.5%2 | 2**-1 | 2**0.5 | 10**18 | 3.0 | 1/3 | 123456789.123456789
'a' 'b' | 'a' ~ 1 ~ none ~ true ~ 1.0 | 'a'*3 | [1]*3 | 'a' + 'b' | 'a' + 1 | 1 + none | [1]+[2] | (1,)+(2,) | [1]+(2,) | '%s-%d' % ('x', 3) | '%5.1f|%-5s|%05d|%+d|%x' % (2.25, 'ab', 42, 3, 255) | '%%' % () | '%s' % none | '%s' % [1] | '%r' % 'x' | '%(a)s' % {'a': 1} | '%d' % 'x' | '%s %s' % 'x' | 'x' % 1
1 < 2 < 3 | 1 < 2 > 3 | 1 == 1.0 | true == 1 | 'a' < 'b' | 'a' < 1 | [1,2] < [1,3] | none == none | none < 1 | 'ell' in s | 'x' not in s | 1 in l | 'a' in d | 1 in 5 | none in [none] | not 1 in l | not true and false or true | 1 if z | 1 if z else 2 | (1 if z) is defined | 'a' if t else 'b' if i else 'c' | z or 'x' | i and 'y' | none and x.y.z | undef or 1
undef | undef.x | undef['x'] | undef() | undef + 1 | undef ~ 'x' | undef == undef2 | undef is defined | not undef | undef|length | undef|list | undef|tojson | undef|upper | undef|default('d') | undef|int | undef[1:] | undef < 1 | s.nope | s.nope.x | d.nope | d['nope'] is defined | d.a | d['a'] | d.items | d['items'] | d.b + 1 | d['k y'][0] | nest.a.b[0].c | nest['a']['b'][-1]['c'] | l[0] | l[-1] | l[9] | l['x'] | l.0 | n.x | n[0] | n[1:] | i.x | d[[1]] | d[1:] | (1,2)[0] | [1,2,3][true] | l.1 + 1
s[0] | s[-1] | s[1:4] | s[::-1] | s[::2] | s[-3:] | s[:-3] | s[5:1] | s[10:100] | s[5:1:-1] | u[1:4] | u[-1] | u[::-1] | u|length | l[1:] | l[::-1] | l[:2] | (1,2,3)[1:] | l[::0] | s[:none] | 'abc'[1:][:1] | l[-100:100] | l[100:-100:-1]
s.upper() | s.lower() | u.upper() | u.lower() | u.title() | u.capitalize() | s.title() | 'hello world'.title() | "they're bill's".title() | 'aBC dEF'.capitalize() | s.swapcase() | '  x '.strip() | ' x '.lstrip() ~ '|' | ' x '.rstrip() ~ '|' | 'xxaxx'.strip('x') | 'xyaxy'.lstrip('yx') | '你x你'.strip('你') | s.split() | ' a  b '.split() | 'a,b,,c'.split(',') | 'a,b,c'.split(',', 1) | 'a b c'.split(none, 1) | ' a b c '.split(maxsplit=1) | 'a,b,c'.rsplit(',', 1) | 'a b  c '.rsplit(none, 1) | ' a b c'.rsplit(maxsplit=9) | 'abc'.split('') | 'a'.split(',')[1] | ''.split(',') | ''.split()
s.startswith('He') | s.endswith(('x','ld')) | s.startswith(1) | s.find('o') | s.rfind('o') | u.find('你') | s.find('zz') | s.index('W') | s.index('zz') | s.count('l') | s.count('') | s.replace('l', 'L') | s.replace('l','L',1) | s.replace('', '-') | 'aaa'.replace('aa','b') | ','.join(['a','b']) | ','.join([1]) | ''.join('abc') | 'a=b=c'.partition('=') | 'abc'.partition('=') | 'a=b=c'.rpartition('=') | 'abc'.rpartition('=') | ml.splitlines() | 'a\r\nb\rc'.splitlines() | ml.splitlines(true) | 'prefix-x'.removeprefix('prefix-') | 'x.py'.removesuffix('.py') | '12'.isdigit() | 'ab1'.isalnum() | 'ab'.isalpha() | ''.isdigit() | ' '.isspace() | 'AB'.isupper() | 'ab1'.islower() | '1'.islower() | 'a'.center(4,'*') ~ 'ab'.center(5,'*') | '7'.zfill(3) | 'a'.ljust(3) ~ '|' | 'a'.rjust(3) | s.__class__ | s.__class__.__mro__ | s.encode
'{} {}'.format(1, 'a') | '{0} {1} {0}'.format('a', 'b') | '{x}'.format(x=3) | '{:>5}|{:<5}|{:^5}'.format('a','b','c') | '{:05d}|{:,}|{:.2f}|{:+}|{:x}|{:%}'.format(42, 1234567, 3.14159, 5, 255, 0.5) | '{{}}'.format() | '{'.format() | '}'.format() | '{}'.format() | '{!r}'.format('a') | '{0.name}'.format(p[0]) | '{0[name]}'.format(p[0]) | '{0[1]}'.format(l) | '{0.__class__}'.format(s) | '{:*^9}'.format('mid') | '{:s}'.format('x') | '{}'.format(none) | '{:5}|'.format(3) | '{:5}|'.format('x') | '{:.2}'.format('xyz') | '{:e}'.format(12345.678) | '{}'.format(2.0) | '{} {0}'.format(1) | '{:08.3f}'.format(-3.14159) | '{:d}'.format('x')
d.get('a') | d.get('zz') | d.get('zz', 4) | d.keys() | d.values() | {'a':1}.items() | d.keys()|list | {'a':1}.items()|list | d|length | {} | {'a': {'b': [1, 'x', none, true, 1.5]}} | {1: 2, 'x': 3, none: 4} | {[1]: 2} | d.pop('a') | d.update({}) | l.append(1) | l.pop() | l.append | d.copy() == d | l.index(1) | l.count(3) | [] | () | (1,) | (1,2) | [[]] | ['a', "it's", '"', 'both\'"'] | q | [q] | [u] | [html] | namespace(a=1).a | namespace(a=1).b is defined | namespace({'x': 2}).x | namespace(a=1) | dict(a=1, b=2) | dict([('x', 1)]) | dict({'y': 1}, z=2) | range(3)|list | range(1,7,2)|list | range(5,0,-2)|list | range(3) | range(3)[1] | range(0) | range(1000000)
s|trim | '  x '|trim ~ '|' | 'xax'|trim('x') | s|length | n|length | i|length | l|join | l|join(', ') | w|join('-') | p|join(',', attribute='name') | d|join(',') | s|join('.') | n|join | n|default('x') | n|default('x', true) | e|default('x') | e|d('x', true) | undef|d | l|first | l|last | []|first | []|first is defined | s|first | s|last | e|last | p|map(attribute='name')|list | p|map(attribute='on', default='?')|list | w|map('upper')|list | w|map('replace', 'b', 'x')|join | p|map(attribute='name') | p|selectattr('on')|list|length | p|selectattr('age', 'equalto', 30)|map(attribute='name')|list | p|selectattr('on', 'defined')|list|length | p|rejectattr('on')|map(attribute='name')|list | l|select('odd')|list | l|reject('gt', 1)|list | l|select|list | l|select('in', [1])|list | p|selectattr('age')|length | p|map('nope')|list | n|select|list | n|map('upper')|list | p|selectattr('name', 'nope')|list | l|map('string')|tojson
s|list | d|list | n|list | i|list | l|string | 5|string ~ 'x' | '42'|int | '4.7'|int | 'x'|int | 'x'|int(9) | none|int | '0x1f'|int(0, 16) | '1f'|int(0,16) | true|int | 3.9|int | ' 12 '|int | '1_0'|int | '1e3'|int | '2.5'|float | 'x'|float | '1e3'|float | 'inf'|float | l|int | s|upper | s|lower | s|capitalize | 'hello wOrld-foo (bar'|title | u|title | 5|upper | s|replace('l','L') | s|replace('l','L',2) | 12|replace(1, 'x') | ml|indent | ml|indent(2, true) | ml|indent(2, true, true) | ml|indent('>>') | 'x'|indent(width=2, first=true) | l|indent | d|items|list | undef|items|list | l|items | d|dictsort | {'B':1,'a':2}|dictsort | {'B':1,'a':2}|dictsort(true) | {'B':2,'a':1}|dictsort(by='value') | {'B':1,'a':2}|dictsort(reverse=true) | l|sort | w|sort | w|sort(case_sensitive=true) | l|sort(reverse=true) | p|sort(attribute='name')|map(attribute='name')|list | p|sort(attribute='age,name')|map(attribute='name')|list | [1,'a']|sort | [3,1,3,2,1]|unique|list | ['a','A','b']|unique|list | ['a','A']|unique(true)|list | l|unique
html|safe | html|escape | html|e|e | html|safe|e | html|forceescape | (html|safe) + html | html + (html|safe) | (html|safe) ~ html | [html|safe] | html|e|upper | '<'|e ~ '<' | l|batch(2)|list | l|batch(2, 0)|list | l|slice(2)|list | l|slice(2, 'x')|list | p|groupby('age')|length | p|groupby('age')|map(attribute='grouper')|list | p|groupby('age')|map('first')|list | 2.5|round | 3.5|round | 2.675|round(2) | 2.1|round(0,'ceil') | 2.9|round(method='floor') | 7|round | -3|abs | -2.5|abs | 'x'|abs | l|sum | p|sum(attribute='age') | [0.1,0.2]|sum | []|sum | ['a']|sum | l|min | l|max | w|min | w|max | []|min is defined | p|max(attribute='age') | l|reverse|list | s|reverse | d|reverse|list | l|reverse | s|wordcount | 'foo bar baz'|truncate(9) | 'foo bar baz qux'|truncate(9, true, '..', 0) | 'foo bar baz qux'|truncate(11, leeway=0) | '%s!'|format('x') | '%(a)s'|format(a=1) | s|center(20) ~ '|' | 'a b/c?'|urlencode | s|nope | 1|tojson(1,2,3,4,5)
d|tojson | d|tojson(indent=2) | l|tojson(indent=4) | {}|tojson(indent=2) | []|tojson(indent=2) | u|tojson | u|tojson(ensure_ascii=true) | q|tojson | html|tojson | d|tojson(sort_keys=true) | d|tojson(separators=(',',':')) | {1:2, none:3, true:4, 1.5:5}|tojson | 1.0|tojson | 1e100|tojson | none|tojson | true|tojson | (1,2)|tojson | range(2)|tojson | nest|tojson(indent=1) | d|tojson(indent='\t') | namespace()|tojson | d.items()|tojson | {'a':[{},[]]}|tojson(indent=2)
i is odd | i is even | i is divisibleby 7 | i is divisibleby(2) | s is string | l is string | l is iterable | s is iterable | i is iterable | d is mapping | l is sequence | s is sequence | d is sequence | d.items() is sequence | undef is sequence | undef is iterable | n is none | n is not none | t is true | t is boolean | 1 is true | i is integer | t is integer | f is float | t is number | 'x' is number | s is defined | undef is undefined | s is eq s | s is equalto 'x' | 1 is ne 2 | 1 is lt 2 | 3 is ge 3 | 1 is in [1] | 'a' is in 'abc' | 'ab' is lower | 'AB' is upper | none is sameas none | range is callable | s is callable | s.upper is callable | html|e is escaped | 'tojson' is filter | 'odd' is test | not i is odd | i is odd and t | 1 is nope | i is odd if t else 3 | i is divisibleby 7 and t | l|length is gt 2 | -1 is defined
cycler('a','b').next() | joiner('-')() | range(2)|map('string')|join | raise_exception('boom') | nope(1) | s() | (s.upper)() | s.upper | range | lipsum() | l | p[0] | p[0].name[0] | [1,2,] | {'a':1,} | (1,2,) | [x for x in l] | lambda | 1 + | a b | 1 ? 2 | s.upper(1) | d.get() | "a\nb\x41\u00e9\101\q" | 'a\'b' | "\N{DASH}" | l|join(d=', ') | l|join(x=1) | s.split(sep=',') | 'a'.join(*[['b','c']]) | dict(**{'a':1}) | dict(**l) | True and False | None | TRUE | -l | +t | -t | not l | l == [3,1,2] | d == {} | 1.5 == 1.5 | 'abc' > 'abd' | 9007199254740993 == 9007199254740992.0 | 1 == '1'
"""

STMT = [
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a','b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}e{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}e{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for x in n %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in undef %}a{% else %}b{% endfor %}",
    "{% for a, b in [(1,2),(3,4)] %}{{ a+b }} {% endfor %}", "{% for a, b in [(1,2,3)] %}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% break %}", "{% for x in l recursive %}{{ x }}{% if x == 3 %}{{ loop([7,8]) }}{% endif %}{% endfor %}",
    "{% for x in [[1,[2]],[3]] recursive %}{{ '(' }}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{{ loop.depth }}{% endif %}{{ ')' }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}", "{% set d.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = [3, 4] %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}a{{ i }}b{% endset %}{{ x }}", "{% set x | upper %}a{{ i }}b{% endset %}{{ x }}", "{% set x | replace('a','z') | upper %}ab{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}",
    "{% if z %}a{% elif i == 7 %}b{% else %}c{% endif %}", "{% if z %}a{% endif %}", "{% if not t %}a{% else %}b{% endif %}", "{% if t %}{% set x = 5 %}{% endif %}{{ x }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(b=1, a=0) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(x=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{{ m }}{{ m.name }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body{{ i }}{% endcall %}", "{% macro m() %}[{{ caller('q') }}]{% endmacro %}{% call(x) m() %}<{{ x }}>{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro f(n) %}{% if n > 1 %}{{ n * f(n-1)|int }}{% else %}1{% endif %}{% endmacro %}{{ f(5) }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m() %}{{ g }}{% endmacro %}{% set g = 3 %}{{ m() }}",
    "{% for x in l %}{{ m() }}{% endfor %}{% macro m() %}x{% endmacro %}", "{% macro m() %}{% for x in l %}{{ x }}{% endfor %}{% endmacro %}{{ m()|length }}", "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter trim|upper %} abc {% endfilter %}|", "{% with a=1, b=2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q1 = 1 %}{% endwith %}{{ q1 }}", "{% set x = 1 %}{% with x = 2, y = x %}{{ x }}{{ y }}{% endwith %}{{ x }}",
    "{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}", "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% raw %}{{ x }}{% endraw %}", "{% raw %}\n a {% endraw %}b", "a {%- raw -%} b {%- endraw -%} c", "{% print 5 %}",
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "  {% if t %}  \n  b\n  {% endif %}  \nc", "a  {%- if t -%}  b  {%- endif -%}  c", "  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}", "a\n\n  {{- i -}}  \n\nb", "  {{ i }}  \n", "{# c #}\nx", "  {# c #}\nx", "a {#- c -#} b", "a\n{#- c #}\nb", "{# {{ x }} {% if %} #}y", "x{# multi\nline #}y",
    "\n\nx\n\n", "a\r\nb\rc\r\n", "{{ '\r\n' }}|", "{{- '  x  ' -}}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}.a }}", "{%if t%}x{%endif%}", "{{i}}{{-i}}", "{% if t %}{% else %}{% endif %}z", "{%- set x = 1 -%}\n\n {{ x }}", "a{% set x = 1 %}\nb", "a {% set x = 1 %} b", "\t{% set x = 1 %}\tb", " {{ i }} {% if t %} {{ i }} {% endif %} ", "é {%- if t %}x{% endif %}", "\u00a0{% if t %}x{% endif %}", "x\u2003{%- if t %}y{% endif %}",
    "{% if t %}", "{% endif %}", "{% for %}", "{% nope %}", "{{ i", "{{ i }", "{% if t }}", "{{ 'x }}", "{# x", "{% raw %}x", "{{ (1 }}", "{{ 1) }}", "{% set 1 = 2 %}", "{% set x %}", "{% include 'a' %}", "{% import 'a' as b %}", "{% from 'a' import b %}", "{% extends 'a' %}", "{% macro %}{% endmacro %}", "{{ }}", "{% %}", "{{ a.1b }}", "{{ 'a' 1 }}", "{% if t: %}x{% endif %}", "{% for x in l: %}{{ x }}{% endfor %}", "{% call 1 %}{% endcall %}", "{% if s|nope %}x{% endif %}", "{% if z %}{{ s|nope }}{% endif %}ok", "{{ s|nope if z else 1 }}", "{{ 1 if z else s|nope }}", "{% for x in [] %}{{ x|nope }}{% endfor %}", "{% if z %}{% for x in [] %}{{ x|nope }}{% endfor %}{% endif %}", "{% set none = 1 %}", "{% if 1 if t else 0 %}x{% endif %}", "{% for x in l if t else l %}{% endfor %}",
    "{% set g = p|selectattr('on') %}{{ g|list|length }}{{ g|list|length }}", "{% set g = l|map('string') %}{{ g|first }}{{ g|list }}", "{% if l|select('gt', 9) %}truthy{% endif %}", "{% set x = [] %}{% for i in l %}{% set x = x + [i] %}{% endfor %}{{ x }}", "{% set a = [1] %}{% set b = a + [2] %}{% set c = a + [3] %}{% set e = b + [4] %}{% set g = b + [5] %}{{ a }}{{ b }}{{ c }}{{ e }}{{ g }}",
    "{% set a = 'x' ~ 'y' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{{ a }}{{ b }}{{ c }}", "{% for g in p|groupby('age') %}{{ g.grouper }}:{{ g.list|length }}{{ g[0] }};{% endfor %}", "{% for k, v in p|groupby('age') %}{{ k }}{{ v|map(attribute='name')|join }}{% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for a in l %}{% for b in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in l %}{% set o = loop %}{% for y in l %}{{ o.index }}{% endfor %}{% endfor %}",
    "{{ l.append(4) or '' }}{{ l }}", "{% set ns = namespace(l=[]) %}{% set ns.l = ns.l + [1] %}{{ ns.l }}", "{% set x = true if s is string else false %}{{ x }}", "{{ loop }}", "{% for loop in l %}{{ loop }}{% endfor %}", "{% set range = 5 %}{{ range }}", "{{ caller }}", "{% set ns = namespace() %}{{ ns.a }}{% set ns.a = 1 %}{{ ns.a }}{{ ns['a'] }}", "{% set i = i + 1 %}{{ i }}", "{% if z %}{% set i = 1 %}{% endif %}{{ i }}", "{% set a = b = 1 %}", "{{ i }}{% set i = 3 %}{{ i }}", "{% for x in l %}{% set i = x %}{% endfor %}{{ i }}", "{% for x in l %}{{ i }}{% endfor %}{% set i = 3 %}", "{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% set i = 3 %}", "{% for x in l %}{% for y in l %}{{ i }}{% endfor %}{% set i = x %}{% endfor %}",
]


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    del env.globals["lipsum"]
    rows = []
    templates = STMT[:]
    for line in EXPR.strip().split("\n"):
        templates += ["{{ " + x.strip() + " }}" for x in line.split(" | ")]
    for src in templates:
        try:
            text = env.from_string(src).render(**json.loads(json.dumps(VARS)))
            text = None if " at 0x" in text else text
        except Exception:
            text = None
        rows.append([src, text])
    json.dump(dict(vars=VARS, rows=rows), sys.stdout, ensure_ascii=False, indent=0)
    print()


if __name__ == "__main__":
    main()
