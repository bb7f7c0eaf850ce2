"""Upstream's names beside the drop-ins', for tools/upstream-suites --names: upstream's sources are parsed, the drop-ins imported.

  upstream_names.py FOLDER KNOWN

One line per difference: MODULE.NAME, its kind, a word (module: no such module; absent; kernel: absent, a program of another compiler;
arguments: other names or order; method: a class lacks it). Names that upstream's modules import from one another count too. Exit
status 1 if a difference but for kernels has no line `names: PATTERN => REASON` in KNOWN."""

import ast
import collections
import importlib
import inspect
import os
import re
import sys

_PACKAGES = ("mamba_ssm", "causal_conv1d", "flash_attn")
_COMPILED = ("triton", "cute.", "tilelang", "T.prim")


def find_modules(folder):
    """{module: path}."""
    found = {}
    for source in sorted(os.listdir(folder)):
        for package in _PACKAGES:
            top = os.path.join(folder, source)
            for base, _, files in os.walk(os.path.join(top, package)):
                for file in files:
                    if file.endswith(".py"):
                        name = os.path.relpath(os.path.join(base, file), top)[:-3].replace(os.sep, ".")
                        found[name.removesuffix(".__init__")] = os.path.join(base, file)
    return found


def _statements(body):
    """Top-level statements, those under if and try too."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            parts = [node.body, node.orelse] + [handler.body for handler in getattr(node, "handlers", [])]
            for part in parts:
                yield from _statements(part)
        else:
            yield node


def _arguments(node):
    every = node.args
    return [a.arg for a in every.posonlyargs + every.args + every.kwonlyargs]


def names_of(path):
    """{name: (kind, arguments or methods)} of a module's source."""
    with open(path, encoding="utf-8") as file:
        tree, found = ast.parse(file.read()), {}
    for node in _statements(tree.body):
        if isinstance(node, ast.FunctionDef):
            compiled = any(mark in ast.unparse(decorator) for decorator in node.decorator_list for mark in _COMPILED)
            found[node.name] = ("kernel", None) if compiled else ("function", _arguments(node))
        elif isinstance(node, ast.ClassDef):
            found[node.name] = ("class", [item.name for item in node.body if isinstance(item, ast.FunctionDef)])
        elif isinstance(node, ast.ImportFrom) and node.module and (node.level or node.module.split(".")[0] in _PACKAGES):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, ("import", None))
    return found


def _their_arguments(value):
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return None


def compare(module, name, kind, detail):
    """-> the words of a name's differences."""
    if not hasattr(module, name):
        return ["kernel" if kind == "kernel" else "absent"]
    value = getattr(module, name)
    if kind == "class" and inspect.isclass(value):
        return ["method %s" % method for method in detail if not hasattr(value, method)]
    if kind == "function":
        ours = _their_arguments(value)
        if ours is not None and ours[:len(detail)] != detail and not {"args", "options"} & set(ours):
            return ["arguments"]
    return []


def main(folder, known_path):
    with open(known_path, encoding="utf-8") as file:
        known = [line[7:].strip().split(" => ") for line in file if line.startswith("names: ")]
    counts, unexplained = collections.Counter(), 0
    for name, path in sorted(find_modules(folder).items()):
        try:
            module = importlib.import_module(name)
        except ImportError:
            module = None
        differences = [("", "module", "module")] if module is None else []
        for item, (kind, detail) in sorted(names_of(path).items()) if module is not None else ():
            words = compare(module, item, kind, detail)
            counts["same"] += not words
            differences += [("." + item, kind, word) for word in words]
        for item, kind, word in differences:
            line = "%s%s: %s" % (name, item, word)
            reason = next((text for pattern, text in known if re.search(pattern, line)), None)
            unexplained += reason is None and word != "kernel"
            counts[word.split()[0]] += 1
            print("%-90s %-9s %s" % (line, kind, reason or ("" if word == "kernel" else "?")))
    print("names: %s; %d without a reason" % (", ".join("%d %s" % (count, word) for word, count in sorted(counts.items())), unexplained))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
