"""Templates: marks, errors, and which variables they use."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmjit.errors import TemplateError
from gemmjit.kernels import KERNELS, KernelSpec, Variant
from gemmjit.templating import override, render, rendering, variables_of


def attributed(source: str) -> dict[str, tuple[str, int]]:
    """Where a compiler believes each line that carries an ``@name:line`` tag to be."""
    name, line, found = "source", 1, {}
    for text in source.splitlines():
        if directive := re.match(r'#line (\d+) "(.*)"', text):
            line, name = int(directive[1]), directive[2]
            continue
        for tag in re.findall(r"@\w+:\d+", text):
            found.setdefault(tag, (name, line))
        line += 1
    return found


def check_tags(source: str) -> int:
    places = attributed(source)
    for tag, (name, line) in places.items():
        assert tag == f"@{name}:{line}", source
    return len(places)


MESSY = """\
// @m:1
//% set half = 4

// @m:4 ${ half }
//% for i in range(2)
//   @m:6 ${ i }
//%   if i

//   @m:9
//%   endif
//% endfor

// @m:13
/*# a comment
    of two lines #*/
// @m:16
//% include "inner"
// @m:18
int a = ${
  half
}; // @m:19, where the joined line begins
/*% if half > 3
 %*/
// @m:24 ${ two_lines }
// @m:25
//## gone
// @m:27
/*%- if half -%*/

// joined with line 27
/*% endif %*/
// @m:32 /*% if half %*/ yes /*% endif %*/
// @m:33
/*% endif %*/
// @m:35
"""


def test_line_marks_name_the_line_of_the_template(folder):
    folder("inner", "// @inner:1\n//% if half\n// @inner:3\n//% endif\n// @inner:5")
    source = render(folder("m", MESSY), {"two_lines": "x\n// y"})
    assert check_tags(source) == 17  # every line that is left
    assert "\0" not in source


def test_line_marks_appear_only_where_the_count_would_be_wrong(folder):
    source = render(folder("m", "int a = ${ x };\nint b = ${ x };\nint c;\n"), {"x": 1})
    assert source == '#line 1 "m"\nint a = 1;\nint b = 1;\nint c;\n'


_PIECES = st.sampled_from(
    [
        ("// {tag}",),
        ("",),
        ("int a = ${{ x }}; // {tag}",),
        ("${{ two }}", "// {tag}"),
        ("//% set y = 1",),
        ("/*% set z = 2 %*/ // {tag}",),
        ("/*# a", "  b #*/ // not a line of its own", "// {tag}"),
        ("//## a note",),
        ("//% include 'inner'",),
        ("//% for i in range(2)", "// {tag}", "//% endfor"),
        ("//% for i in range(2)", "${{ i }}; // {tag}", "//% endfor"),
        (
            "//% for i in range(3)",
            "",
            "  // {tag}",
            "  //% if i",
            "  // {tag}",
            "  //% endif",
            "//% endfor",
        ),
        ("//% if false", "// never", "//% else", "// {tag}", "//% endif"),
        ("/* c // {tag}", "*/ // {tag}"),
        ("#define F \\", "  ${{ x }}", "// {tag}"),
    ]
)


@given(pieces=st.lists(_PIECES, min_size=1, max_size=12))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_line_marks_are_right_for_any_mixture(tmp_path_factory, pieces):
    lines: list[str] = []
    for piece in pieces:
        for text in piece:
            lines.append(text.format(tag=f"@m:{len(lines) + 1}"))
    place = tmp_path_factory.mktemp("mixture")
    (place / "m").write_text("\n".join(lines))
    (place / "inner").write_text("// @inner:1\n//% if x\n\n// @inner:4\n//% endif")
    given = {name: value for name, value in (("x", 1), ("two", "a\nb")) if _uses(lines, name)}
    with override(place):
        check_tags(render("m", given))


def _uses(lines: list[str], name: str) -> bool:
    text = "\n".join(lines)
    return f"{{ {name} }}" in text or (name == "x" and "include" in text)


def test_line_marks_never_break_a_macro_a_comment_or_a_raw_string(folder):
    text = (
        "#define F(x) \\\n//% for i in range(2)\n  g(${ i }) \\\n//% endfor\n  h(x)\n"
        '/* //% not in\n//% if true\n " R"( \n//% endif\n*/ int @m:10;\n'
        'asm(R"ptx(\n//% for i in range(2)\nmov ${ i };\n//% endfor\n)ptx");\nint @m:16;\n'
    )
    source = render(folder("m", text), {})
    assert "#define F(x) \\\n  g(0) \\\n  g(1) \\\n  h(x)\n" in source
    assert '/* //% not in\n " R"( \n*/ int' in source
    assert 'asm(R"ptx(\nmov 0;\nmov 1;\n)ptx");' in source
    assert attributed(source)["@m:16"] == ("m", 16)


def test_cuda_survives_the_delimiters(folder):
    text = 'int a[2][2] = {{1, 2}, {3, 4}};\nasm("mma {%0, %1}, {%2};" :: "r"(a));  {# not }\n'
    assert render(folder("m", text), {}).endswith(text)


def test_undefined_variable_names_template_and_line(folder):
    folder("inner", "ok\nint x = ${ nowhere.deep };\n")
    folder("m", '\n//% include "inner"\n')
    with pytest.raises(TemplateError, match=r"template inner, line 2: .*'nowhere' is undefined"):
        render("m", {})


def test_syntax_error_names_template_and_line(folder):
    folder("inner", "ok\n\n//% for\n")
    folder("m", '\n//% include "inner"\n')
    with pytest.raises(TemplateError, match="template inner, line 3: "):
        render("m", {})


def test_failing_expression_names_template_and_line(folder):
    with pytest.raises(TemplateError, match=r"template m, line 2: ZeroDivisionError"):
        render(folder("m", "\n${ 1 // x }\n"), {"x": 0})


def test_missing_include_names_the_place_and_what_was_searched(folder, tmp_path):
    folder("m", '\n\n//% include "core/none.cuh"\n')
    with pytest.raises(TemplateError, match=r"template m, line 3: .*'core/none.cuh'") as caught:
        render("m", {})
    assert str(tmp_path) in str(caught.value)


def test_missing_template_is_an_error_that_lists_the_places(tmp_path):
    with pytest.raises(TemplateError, match=r"'kernels/none\.cu\.j2'"):
        render("kernels/none.cu.j2", {})


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a//b", "a/./b", "a\\b", ""])
def test_a_name_cannot_leave_the_templates(name):
    with pytest.raises(TemplateError, match="below the templates"):
        render(name, {})


def test_a_variable_that_is_assigned_in_one_place_and_read_in_another_is_used(folder):
    name = folder("kernels/k.cu.j2", "//% for n in range(2)\n${n}\n//% endfor\nint after = ${n};\n")
    assert "int after = 7;" in render(name, {"n": 7})
    with pytest.raises(TemplateError, match="got also m, o"):
        render(name, {"n": 7, "o": 1, "m": 2})


@pytest.mark.parametrize("template", sorted({k.template for k in KERNELS.values()}))
def test_plain_templates_give_what_they_give_through_jinjas_lexer(template, monkeypatch):
    (kernel,) = (k for k in KERNELS.values() if k.template == template)
    spec = KernelSpec(kernel, kernel.default_config, Variant(), kernel.min_arch)
    texts = []
    for markup in (rendering._MARKUP, re.compile("")):
        monkeypatch.setattr(rendering, "_MARKUP", markup)
        rendering._environment.cache_clear()
        rendering._facts.cache_clear()
        rendering._trees.clear()
        texts.append(render(template, spec.variables))
    assert texts[0] == texts[1]


def test_unused_variable_is_an_error(folder):
    with pytest.raises(TemplateError, match=r"got also blok_m, z"):
        render(folder("m", "${ block_m }"), {"block_m": 1, "blok_m": 2, "z": 3})


def test_variables_are_collected_over_includes(folder):
    folder("inner", "${ a } ${ given } ${ loop_item }\n//% set own = 1\n${ own }\n")
    text = (
        "//% set given = b\n//% for loop_item in items\n"
        '//% include "inner"\n//% endfor\n${ given }\n//% macro f(x)\n${ x }\n//% endmacro\n'
        "${ f(c) }"
    )
    assert variables_of(folder("m", text)) == {"a", "b", "c", "items"}


def test_computed_include_is_refused(folder):
    with pytest.raises(TemplateError, match=r"template m, line 2: .*computed name"):
        variables_of(folder("m", "\n//% include which\n"))


def test_files_as_other_editors_write_them(folder, tmp_path):
    text = "// é\n//% if a\nint a; // \\\n//% endif\n"
    want = render(folder("m", text), {"a": 1})
    for data in (text.replace("\n", "\r\n").encode(), text.encode("utf-8-sig")):
        (tmp_path / "m").write_bytes(data)
        assert render("m", {"a": 1}) == want


def test_a_file_that_is_no_text_is_refused(folder, tmp_path):
    for data, told in ((b"a\nb\0", "a NUL in line 2"), (b"\xe9", "codec can't decode")):
        (tmp_path / "m").write_bytes(data)
        with pytest.raises(TemplateError, match=rf"template m: .*m cannot be read: .*{told}"):
            render("m", {})
