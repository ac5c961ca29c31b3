"""Public access to templates: where they lie, and how to put others in front of them."""

from gemmjit.templating import override, read_template, templates_root, variables_of

__all__ = ["override", "read_template", "templates_root", "variables_of"]
