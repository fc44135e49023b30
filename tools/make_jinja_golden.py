#!/usr/bin/env python3
"""Writes tests/golden/jinja.txt: templates, variables and what jinja2 makes of them.

Oracle: jinja2 3.1.6 (pip install jinja2==3.1.6) with the settings of Hugging Face's chat templates.
Usage: make_jinja_golden.py [--conversations N] > tests/golden/jinja.txt

A row is source TAB result, with \\n, \\t, \\r and \\\\ escaped. The source sets its own variables. The
result begins with "=", or is "!" where rendering must fail.
"""
import argparse
import json
import random

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""

THINKING = """{%- macro header(role, extra='') %}{{ '<|im_start|>' ~ role ~ extra ~ '\\n' }}{% endmacro %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- header(message.role) }}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.lstrip('\\n') + '<|im_end|>\\n' }}
    {%- else %}
        {{- header(message.role, extra=' ' if loop.first else '') + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- header('assistant') }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

TEMPLATES = [CHATML, QWEN, LLAMA3, LLAMA31, GEMMA, THINKING]

# One construct each.
SNIPPETS = r"""
a {{ 1 + 2 * 3 ** 2 }} b {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }} {{ 1e3 }} {{ 1.5e300 * 1e10 }} {{ 0.1 + 0.2 }}
{{ 1 ~ 2 ~ 'x' ~ none ~ true ~ 1.0 }} {{ 'a' 'b' }} {{ "it's" }} {{ '\u00e9\x41\\\n' }}
{{ [1, 'two', 3.0, none, true, (1,), {'k': "v'", 'q': [] }] }} {{ () }} {{ {} }}
{{ 'a' in 'abc' }} {{ 'a' in ['a'] }} {{ 'k' in {'k': 1} }} {{ 2 not in [1] }} {{ not 1 == 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }}
{{ 'yes' if 1 else 'no' }} {{ 'yes' if 0 }} {{ 'a' if false else 'b' if false else 'c' }}
{{ missing }} {{ missing is defined }} {{ missing | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }}
{{ missing.attribute }}
{{ missing + 1 }}
{{ 'abc'[0] }} {{ 'abc'[-1] }} {{ 'héllo'[1:3] }} {{ 'abc'[::-1] }} {{ [1,2,3][1:] }} {{ [1,2,3,4][::2] }} {{ [1,2,3][-2:] }} {{ 'abc'[5] }} {{ [1,2,3][:-1] }} {{ [1,2,3][10:] }}
{{ '  x  ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ '  x '.strip() }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'abcab'.strip('ab') }}
{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a  b c'.split(none, 1) }} {{ 'a\nb\r\nc'.splitlines() }}
{{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'aXb'.upper() }} {{ 'AbC'.lower() }} {{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }}
{{ 'banana'.replace('a', 'o') }} {{ 'banana'.replace('a', 'o', 2) }} {{ 'banana' | replace('an', '') }} {{ 'banana'.find('n') }} {{ 'banana'.count('a') }}
{{ ', '.join(['a', 'b']) }} {{ [1, 2] | join('-') }} {{ [{'n': 1}, {'n': 2}] | join(',', attribute='n') }} {{ 'abc' | join('.') }}
{{ 'hello' | upper }} {{ 'HeLLo' | lower }} {{ 'hello you' | title }} {{ 'hELLO' | capitalize }} {{ 12 | string | length }}
{{ [1,2,3] | first }} {{ [1,2,3] | last }} {{ [] | first }} {{ 'abc' | first }} {{ [1,2,3] | length }} {{ {'a': 1} | length }} {{ 'añb' | count }}
{{ {'a': 1, 'b': [1, 2.5, none, true, "q\"\\\n\t<>&'é"]} | tojson }} {{ [] | tojson }} {{ {} | tojson(indent=2) }}
{{ {'a': 1, 'b': [1, {'c': []}]} | tojson(indent=2) }}
{{ 'x' | tojson }} {{ 1.0 | tojson }} {{ none | tojson }} {{ true | tojson }} {{ (1, 2) | tojson }}
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %} {% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %} {{ {'b': 1, 'a': 2} | dictsort }}
{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 7) }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }}
{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for x in [] %}x{% else %}empty{% endfor %} {% for x in [1, 2, 3, 4] if x is even %}{{ x }}/{{ loop.length }} {% endfor %} {% for x in missing %}{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %} {{ range(3) | list }} {{ range(5, 0, -2) | list }}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(n=0, s='a') %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.other is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set t %}block {{ a }}{% endset %}[{{ t }}] {% set u | upper %}x{% endset %}{{ u }} {% filter upper %}abc{{ a }}{% endfilter %}
{% macro f(a, b='B', c='C') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, c=2) }} {{ f('x', 'y', 'z') | upper }}
{% macro f(a) %}{% if a > 0 %}{{ a }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{{ f(1) }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 'x' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ 1 is number }} {{ true is boolean }} {{ 1 is integer }} {{ 1.0 is float }} {{ none is none }} {{ 'x' is iterable }} {{ 1 is iterable }} {{ true is true }} {{ 1 is true }} {{ 2 is eq 2 }} {{ 1 is in [1] }} {{ x is not defined }} {{ 1 is not none }}
{{ [{'r': 'u', 'n': 1}, {'r': 's', 'n': 2}, {'n': 3}] | selectattr('r', 'defined') | map(attribute='n') | list }} {{ [{'r': 'u'}, {'r': 's'}] | selectattr('r', 'equalto', 's') | list }} {{ [{'r': 'u'}, {'r': 's'}] | rejectattr('r', 'equalto', 's') | list | length }} {{ [1, 2, 3] | select('odd') | list }} {{ [0, 1, ''] | reject | list }} {{ ['a', 'b'] | map('upper') | join }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ '3.9' | int }} {{ '1.5' | float }} {{ 7 | float }} {{ -3 | abs }} {{ [3, 1, 3] | unique | list }} {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }}
{{ 'a\nb\n\nc' | indent }} {{ 'a\nb' | indent(2, true) }}
{{ raise_exception('no') }}
{{ 1 / 0 }}
{{ 'a' + 1 }}
{{ [1] + [2] }} {{ 'ab' * 3 }} {{ [0] * 3 }} {{ 'ab' * -1 }}
{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}
{# comment #}a{#- strip -#} b {%- if true -%} c {%- endif -%} d
{% raw %}{{ not }} {% this %}{% endraw %} {%- raw -%}  x  {%- endraw -%} y
{{ '}}' }} {{ {'a': {'b': 1}} }} {{ {'a': {'b': 1}}.a.b }} {{ {'a': {'b': 1}}['a']['b'] }} {{ [[1]][0][0] }} {{ [1, 2].0 }}
{{ 1 if 2 > 1 and not false or missing }} {{ (1, 2)[1] }} {{ (1 + 2) * 3 }} {{ 2 * (3) }} {{ - 3 + 5 }} {{ 2 - -2 }} {{ 'x' ~ 1 + 2 }}
{{ 1 == 1.0 }} {{ '1' == 1 }} {{ none == false }} {{ [1] == [1] }} {{ {'a': 1} == {'a': 1} }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ true + 1 }} {{ 1 < 'a' }}
{{ 'x'.nothing() }}
{{ strftime_now is defined }} {{ raise_exception is defined }} {{ 1e16 }} {{ 123456789.125 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1e15 }} {{ 3.0 * 2 }}
{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}{% for x in 'añc' %}{{ x }}.{% endfor %}{% for k in {'p': 1, 'q': 2} %}{{ k }}{% endfor %}
{% generation %}x{% endgeneration %}
{% if x %}
{{ 1 + }}
{% for x in [1] %}
{{ 'open }}
{% unknown %}
""".strip().split("\n")

BLOCKS = [
    "line\n  {% if true %}\n  text\n  {% endif %}\nend\n",
    "  {% if true %}\nx\n{% endif %}  \n  {{ 1 }}\n\n",
    "{% for i in [1, 2] %}\n  * {{ i }}\n{% endfor %}\ndone",
    "a\n  {#- c -#}  \nb\n  {# c #}\nd {# e #}\nf",
    "a  {%+ if true %} x {%+ endif %} b\n   {%+ if true %}\ny{% endif +%}\nz",
    "\t {%- set a = 1 -%} \n {{- a -}} \n b",
    "\r\na\r\n{% if 1 %}\r\nb\r\n{% endif %}\r\n",
    "{{ 1 }}\n{{ 2 }}\n\n",
    "{% raw %}\n  {{ x }}\n{% endraw %}\n  {% if 1 %}y{% endif %}\n",
    "x {{- ' y ' -}} z",
]


def literal(value):
    """A JSON value as a template writes it."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "{" + ", ".join(literal(k) + ": " + literal(v) for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: fmt
    return env


def render(env, source, variables):
    try:
        return "=" + env.from_string(source.replace("{% generation %}", "").replace("{% endgeneration %}", "")).render(**variables)
    except Exception:
        return "!"


WORDS = ["Hello", " world", "\n", "\n\n", "  ", "\t", "é", "日本", "🙂", "<|im_end|>", "{{ x }}", "{% if %}", "'", '"',
         "\\", "</think>", "<think>", "a", "1", "<tool_response>", "</tool_response>", "&<>", "\u00a0", "\u2028", "."]


def text(rng):
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(0, 9)))


def any_value(rng, depth=0):
    kind = rng.randrange(8 if depth < 3 else 6)
    simple = [None, True, False, rng.randrange(-1000, 1000), rng.choice([0.5, 1e20, -2.0]), text(rng)]
    if kind < 6:
        return simple[kind]
    if kind == 6:
        return [any_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice("abcdef"): any_value(rng, depth + 1) for _ in range(rng.randrange(3))}


def conversation(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text(rng)})
    for i in range(rng.randrange(1, 6)):
        message = {"role": "user" if i % 2 == 0 else "assistant", "content": text(rng)}
        if rng.random() < 0.1:
            message["role"] = rng.choice(["tool", "assistant", "user"])
        if message["role"] == "assistant" and rng.random() < 0.3:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": "f", "arguments": {"x": any_value(rng)}}}
                for _ in range(rng.choice([1, 1, 2]))]
        messages.append(message)
    variables = {"messages": messages, "add_generation_prompt": rng.random() < 0.5,
                 "bos_token": "<s>", "eos_token": "</s>"}
    if rng.random() < 0.3:
        variables["tools"] = [{"type": "function", "function": any_value(rng)} for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.3:
        variables["enable_thinking"] = rng.random() < 0.5
    return variables


def rows(conversations):
    env = environment()
    for source in SNIPPETS + BLOCKS:
        yield source, render(env, source, {})
    rng = random.Random(7)
    for i in range(conversations):
        source = TEMPLATES[i % len(TEMPLATES)]
        variables = conversation(rng)
        sets = "".join("{% set " + k + " = " + literal(v) + " %}" for k, v in variables.items())
        yield sets + "\n" + source, render(env, source, variables)


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=48)
    print("# oracle: jinja2", jinja2.__version__)
    for source, result in rows(parser.parse_args().conversations):
        print(escape(source) + "\t" + escape(result))


if __name__ == "__main__":
    main()
