"""From a template and its variables to CUDA source, and errors that name template and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from jinja2 import (
    Environment,
    FunctionLoader,
    StrictUndefined,
    TemplateNotFound,
    TemplateSyntaxError,
    meta,
    nodes,
)

from gemmjit.errors import TemplateError
from gemmjit.templating.marks import LineMarks, marked, place
from gemmjit.templating.paths import overlays, read_template, templates_root

__all__ = ["render", "variables_of"]


class _Environment(Environment):
    """Jinja's, which compiles a text from the tree that `_facts` made of it, if it did."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _trees.pop((name, source), None)
        if tree is not None:
            return tree
        if _MARKUP.search(source):
            return super()._parse(source, name, filename)
        # Nothing to find: half of the templates are plain CUDA, and Jinja's lexer reads slowly.
        data = nodes.TemplateData(marked(source, name or "template"), lineno=1)
        tree = nodes.Template([nodes.Output([data], lineno=1)], lineno=1)
        tree.set_environment(self)
        return tree


#: What a text without markup has none of; a lone return would be a line end.
_MARKUP = re.compile(r"\$\{|/\*[%#]|//%|//##|\r")


#: Trees of texts that were looked at and not compiled yet; each serves once, since to compile it
#: may change it.
_trees: dict[tuple[str | None, str], nodes.Template] = {}
_MAX_TREES = 256


@lru_cache(maxsize=32)
def _environment(above: tuple[Path, ...]) -> Environment:
    """Return the Jinja environment that sees the given directories before gemmjit's templates.

    The delimiters survive CUDA: the usual ones clash with ``{{1, 2}, {3, 4}}`` and ``"{%0, %1}"``.
    """

    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        text = read_template(name, above)
        if text is None:
            return None
        if not text.endswith("\n"):
            text += "\n"  # what includes it goes on in a line of its own
        return text, name, lambda: read_template(name, above) in (text, text[:-1])

    return _Environment(
        block_start_string="/*%",
        block_end_string="%*/",
        variable_start_string="${",
        variable_end_string="}",
        comment_start_string="/*#",
        comment_end_string="#*/",
        line_statement_prefix="//%",
        line_comment_prefix="//##",
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        extensions=[LineMarks],
        loader=FunctionLoader(load),
    )


def render(template: str, variables: Mapping[str, object]) -> str:
    """Return the CUDA source that a template gives: one text, free of includes.

    Parameters
    ----------
    template : str
        Name below the templates, as in ``kernels/simt_grouped_mm.cu.j2``.
    variables : mapping
        A value for every variable of the template, and for no other.

    Returns
    -------
    str
        Source with ``#line`` directives that name templates. It depends on nothing but the texts
        of the templates and the variables.

    Raises
    ------
    TemplateError
        If the template or one that it includes is missing or malformed, if a variable is missing
        or not used; the message names template and line.
    """
    above = overlays()
    unused = set(variables) - _variables_of(template, exact=False)
    if unused:
        unused -= variables_of(template)
    if unused:
        raise TemplateError(
            f"template {template}: expected variables that it uses; got also "
            f"{', '.join(sorted(unused))}. "
            "Remove them, or use them in the template"
        )
    try:
        text = _environment(above).get_template(template).render(dict(variables))
    except Exception as error:
        raise _explained(error, template, above) from error
    return place(text)


def variables_of(template: str) -> frozenset[str]:
    """Return the variables that must be passed to a template and to what it includes.

    Raises
    ------
    TemplateError
        If the template or an include is missing, malformed, or included under a computed name.
    """
    return _variables_of(template, exact=True)


def _variables_of(template: str, *, exact: bool) -> frozenset[str]:
    """Return the variables of a template; if not `exact`, perhaps without some of them.

    What Jinja itself finds takes as long as compiling a template once more.
    """
    above = overlays()
    found: set[str] = set()
    pending: list[tuple[str, frozenset[str]]] = [(template, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, given = pending.pop()
        if (name, given) in seen:
            continue
        seen.add((name, given))
        text = read_template(name, above)
        if text is None:
            raise TemplateError("template: " + _absent(name, above))
        try:
            facts = _facts(name, text)
        except TemplateSyntaxError as error:
            raise _explained(error, template, above) from error
        found |= (_undeclared(name, text) if exact else facts.read) - given
        for include, line in facts.includes:
            if include is None:
                raise TemplateError(
                    f"template {name}, line {line}: expected an include of one fixed template; "
                    "got a computed name"
                )
            if read_template(include, above) is None:
                raise TemplateError(f"template {name}, line {line}: " + _absent(include, above))
            pending.append((include, given | facts.assigned))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the syntax of one template says."""

    read: frozenset[str]  # and nowhere assigned
    assigned: frozenset[str]  # visible in what it includes
    includes: tuple[tuple[str | None, int], ...]


@lru_cache(maxsize=256)
def _facts(name: str, text: str) -> _Facts:
    environment = _environment(())
    tree = environment.parse(text, name, name)
    names: dict[str, set[str]] = {"load": set(), "store": set(), "param": set()}
    assigned = names["store"]
    includes: list[tuple[str | None, int]] = []
    for node in tree.find_all((nodes.Name, nodes.Macro, nodes.Include, nodes.Import,
                               nodes.FromImport, nodes.Extends)):  # fmt: skip
        if isinstance(node, nodes.Name):
            names[node.ctx].add(node.name)
            continue
        if isinstance(node, nodes.Macro):
            assigned.add(node.name)
            continue
        if isinstance(node, nodes.Import):
            assigned.add(node.target)
        elif isinstance(node, nodes.FromImport):
            assigned |= {n if isinstance(n, str) else n[1] for n in node.names}
        target: nodes.Expr = node.template  # type: ignore[attr-defined]
        includes += [(found, node.lineno) for found in _targets(target)]
    if len(_trees) < _MAX_TREES:
        _trees[name, text] = tree
    read = names["load"] - names["param"] - assigned
    return _Facts(frozenset(read), frozenset(assigned), tuple(includes))


@lru_cache(maxsize=256)
def _undeclared(name: str, text: str) -> frozenset[str]:
    return frozenset(meta.find_undeclared_variables(_environment(()).parse(text, name, name)))


def _targets(node: nodes.Expr) -> Iterator[str | None]:
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, nodes.CondExpr) and node.expr2 is not None:
        yield from _targets(node.expr1)
        yield from _targets(node.expr2)
    else:
        yield None


def _explained(error: Exception, template: str, above: tuple[Path, ...]) -> TemplateError:
    """Return the TemplateError that says where an error of Jinja, or of an expression, arose."""
    if isinstance(error, TemplateError):
        return error
    if isinstance(error, TemplateSyntaxError):
        return TemplateError(
            f"template {error.name or template}, line {error.lineno}: {error.message}"
        )
    name, line = template, None
    trace = error.__traceback__
    while trace is not None:  # Jinja rewrites tracebacks: a frame per template, innermost last
        if trace.tb_frame.f_globals.get("__jinja_exception__") is not None:
            name, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, TemplateNotFound):
        if line is None:
            return TemplateError("template: " + _absent(str(error.name), above))
        return TemplateError(f"template {name}, line {line}: " + _absent(str(error.name), above))
    where = f"template {name}" + (f", line {line}" if line is not None else "")
    return TemplateError(f"{where}: {type(error).__name__}: {error}")


def _absent(name: str, above: tuple[Path, ...]) -> str:
    places = ", ".join(str(place) for place in (*above, templates_root()))
    return (
        f"expected the name of a template; got {name!r}, which is not in {places}. Correct the name"
    )
