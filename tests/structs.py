"""The structs of the templates, as ctypes lays them out."""

from __future__ import annotations

import ctypes
import re

from gemmjit import templates

C_TYPES = {"int": ctypes.c_int32, "i64": ctypes.c_int64}


def struct_of(name: str, *files: str) -> type[ctypes.Structure]:
    """Return a struct of the templates as ctypes lays it out."""
    text = "".join(templates.read_template(f) for f in files)
    body = re.search(rf"struct {name} {{\n(.*?)\n}};", text, re.DOTALL)
    assert body, f"no struct {name}"
    fields = []
    for line in re.sub(r"//.*", "", body[1]).split(";"):
        declaration = line.strip()
        if not declaration:
            continue
        kind, names = re.fullmatch(r"(.*?)\s+(\w+(?:,\s*\w+)*)", declaration).groups()
        if kind.endswith("*"):
            ctype = ctypes.c_void_p
        elif kind in C_TYPES:
            ctype = C_TYPES[kind]
        else:
            ctype = struct_of(kind, *files)
        fields += [(n.strip(), ctype) for n in names.split(",")]
    return type(name, (ctypes.Structure,), {"_fields_": fields})
