"""The structs of the templates, as ctypes lays them out."""

from __future__ import annotations

import ctypes
import re

from gemmjit import templates

C_TYPES = {"int": ctypes.c_int32, "i64": ctypes.c_int64}


def struct_of(name: str, *files: str) -> type[ctypes.Structure]:
    """Return a struct of the templates as ctypes lays it out."""
    return struct_in(name, "".join(templates.read_template(f) for f in files))


def struct_in(name: str, text: str) -> type[ctypes.Structure]:
    """Return a struct of CUDA source, its base first; functions and constants are no fields."""
    text = re.sub(r"#line.*\n", "", text)
    body = re.search(rf"struct {name}(?: : (\w+))? {{\n(.*?)\n?}};", text, re.DOTALL)
    assert body, f"no struct {name}"
    fields = []
    if body[1] and f"struct {body[1]} " in text:
        fields += [("base", struct_in(body[1], text))]
    plain = re.split(r"\n *(?:static|__device__)", body[2])[0]
    for line in re.sub(r"//.*", "", plain).split(";"):
        declaration = line.strip()
        if not declaration:
            continue
        kind, names = re.fullmatch(r"(.*?)\s+(\w+(?:,\s*\w+)*)", declaration).groups()
        if kind.endswith("*"):
            ctype = ctypes.c_void_p
        elif kind in C_TYPES:
            ctype = C_TYPES[kind]
        else:
            ctype = struct_in(kind, text)
        fields += [(n.strip(), ctype) for n in names.split(",")]
    return type(name, (ctypes.Structure,), {"_fields_": fields})
