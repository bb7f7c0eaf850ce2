#!/usr/bin/env python3
"""make_sigs.py [--with HEADER] OUT.c FILE.sig...: the operators' signatures as the tables of src/runtime/sig.h, with asserts that they
match the structs of krait/ops.h and op_args.h (or HEADER). Format: docs/ADD_OP.md. make_sigs.py --docs OPS.md FILE.sig...
rewrites the tables in that file; --check-docs fails if they are out of date. make_sigs.py --public OUT.c HEADER.h...
FILE.sig...: the operators' public functions, and the tables of src/runtime/public_op.h."""
import pathlib
import re
import sys

TYPES = {"float": "KR_TYPE_ACTIVATION", "f32": "KR_TYPE_F32", "i32": "KR_TYPE_I32", "c64": "KR_TYPE_C64", "any": "KR_TYPE_FLOAT",
         "f32|c64": "KR_TYPE_F32 | KR_TYPE_C64"}
ROLES = {"in": "KR_IN", "out": "KR_OUT", "inout": "KR_INOUT"}
CLASSES = {"activation", "parameter", "state", "index"}
DRAWS = {"normal": 2, "uniform": 2, "sequences": 0, "offsets": 1, "rows": 1, "counts": 2}
LIMITS = {"INT32_MAX": "INT32_MAX"}


class Bad(Exception):
    pass


class Words:
    """The words of a line: names, numbers, (...), "...", =, >=, .., ?."""
    WORD = re.compile(r'\s*(\([^()]*\)|"[^"]*"|>=|==|=|[^\s(),"=]+)')

    def __init__(self, text):
        self.list, at = [], 0
        while text[at:].strip():
            match = self.WORD.match(text, at)
            if not match:
                raise Bad("cannot read '%s'" % text[at:].strip())
            self.list.append(match[1])
            at = match.end()

    def peek(self):
        return self.list[0] if self.list else None

    def take(self, *wanted):
        if not self.list:
            raise Bad("unexpected end of line")
        if wanted and self.list[0] not in wanted:
            raise Bad("unexpected '%s', expected %s" % (self.list[0], " or ".join(wanted)))
        return self.list.pop(0)

    def takes(self, word):
        if self.peek() != word:
            return False
        self.list.pop(0)
        return True


NONE = (frozenset(), frozenset())


def both(one, other):
    return one[0] | other[0], one[1] | other[1]


def read_fact(words):
    if words.takes("complex"):
        return "complex", words.take()
    name = words.take()
    if words.takes("=="):
        words.take("0")
        return "zero", name
    return ("flag" if name.startswith(("KRAIT_", "KR_")) else "given"), name


def read_when(words):
    """[with A and B | without A] -> (facts that must hold, facts that must not), as words, negation possible."""
    word = words.take("with", "without")
    facts = [read_fact(words)]
    while words.takes("and"):
        facts.append(read_fact(words))
    if word == "without" and len(facts) > 1:
        raise Bad("'without' takes one fact")
    return (frozenset(facts), frozenset()) if word == "with" else (frozenset(), frozenset(facts))


def negate(when):
    if len(when[0]) + len(when[1]) != 1:
        raise Bad("only a single fact can have an 'else' within a sum")
    return when[1], when[0]


def read_choices(words, read_one):
    """ONE [with FACT else ONE ...] -> [(when, one)], the last with no condition."""
    choices = []
    while True:
        one = read_one(words)
        if words.peek() not in ("with", "without"):
            return choices + [(NONE, one)]
        choices.append((read_when(words), one))
        words.take("else")


def read_sum(text, lets):
    """W-1, 2D, R+columns, H*P -> [(times, sizes, when)]."""
    terms = []
    for sign, number, name in re.findall(r"([+-]?)\s*(\d*)([A-Za-z_][\w*]*|)", text):
        if not number and not name:
            continue
        times = int(number or 1) * (-1 if sign == "-" else 1)
        if name in lets:
            terms += [(times * t, sizes, when) for t, sizes, when in lets[name]]
        else:
            if name.count("*") > 1:
                raise Bad("'%s' has more than two factors" % name)
            terms.append((times, tuple(name.split("*")) if name else (), NONE))
    if not terms:
        raise Bad("'%s' is not a size" % text)
    return [t for t in terms if t[0]]


def read_type(words):
    word = words.take()
    if word == "like":
        return word, words.take()
    if word not in TYPES:
        raise Bad("'%s' is not a type" % word)
    return word, None


class Tensor:
    def __init__(self, name, role, optional):
        self.name, self.role, self.optional = name, role, optional
        self.kind, self.types, self.dims, self.absent, self.places = "activation", [], [], [], []
        self.draw, self.chance, self.bound, self.usual, self.mixed = ("normal", ["0", "1"]), None, None, False, False
        self.same, self.of, self.rereads = None, None, []

    def copy(self, name, role, optional):
        t = Tensor(name, role, optional)
        t.kind, t.types, t.dims, t.absent, t.same = self.kind, self.types, self.dims, self.absent, self.same
        t.draw, t.chance, t.usual, t.mixed = self.draw, self.chance, self.usual, self.mixed
        return t


class Op:
    def __init__(self, name):
        self.name, self.flags, self.sizes, self.limits, self.fields, self.lets, self.tensors = name, [], [], [], [], {}, []
        self.gradient = self.forward = None
        self.bench, self.facts, self.let_words = "", [], []

    def tensor(self, name):
        for i, t in enumerate(self.tensors):
            if t.name == name:
                return i
        raise Bad("%s has no tensor '%s'" % (self.name, name))

    def fact(self, fact):
        kind, name = fact
        if kind == "given" or kind == "complex":
            self.tensor(name)
        elif kind == "zero" and name not in self.sizes:
            raise Bad("%s has no size '%s'" % (self.name, name))
        if fact not in self.facts:
            self.facts.append(fact)
        return self.facts.index(fact)


def read_sizes(op, words, ops):
    """size B D >= 0 | size N 1..512 | size n_states >= B without indices | size D multiple of G."""
    names = []
    while words.peek() and re.fullmatch(r"[A-Za-z_]\w*", words.peek()) and words.peek() not in ("multiple", "with", "without"):
        names.append(words.take())
    low = high = multiple = None
    if words.takes("multiple"):
        words.take("of")
        multiple = words.take()
    elif words.takes(">="):
        low = words.take()
    elif words.peek() and ".." in words.peek():
        low, high = words.take().split("..")
    when = read_when(words) if words.peek() else NONE
    for name in names:
        if name not in op.sizes:
            op.sizes.append(name)
        if low is not None or multiple:
            op.limits.append((name, multiple, low, high, when))


def read_attributes(op, t, words):
    own_absent = []
    while words.peek():
        word = words.take()
        if word == "absent":
            begin = list(words.list)
            when = read_when(words)
            reason = " ".join(begin[:len(begin) - len(words.list)])
            if words.peek() and words.peek().startswith('"'):
                reason = words.take()[1:-1]
            own_absent.append((when, reason))
        elif word == "may":
            words.take("be")
            t.places.append(words.take())
            while words.takes("or"):
                t.places.append(words.take())
        elif word in DRAWS:
            t.draw = word, [words.take() for _ in range(DRAWS[word])]
        elif word == "chance":
            t.chance = words.take()
        elif word == "bound":
            t.bound = [words.take()]
            if words.peek() and re.fullmatch(r"[\d.e-]+", words.peek()):
                t.bound.append(words.take())
        elif word == "exact":
            t.bound = ["-1"]
        elif word in ("usual", "unusual"):
            t.usual = int(word == "usual") + words.takes("f32")
        elif word == "mixed":
            t.mixed = True
        elif word == "same":
            t.same = words.take()
        else:
            raise Bad("'%s' is not a tensor attribute" % word)
    if own_absent:
        t.absent = own_absent


def read_tensor(op, name, words, ops):
    role = words.take()
    t = Tensor(name, role.rstrip("?"), role.endswith("?"))
    if t.role not in ROLES:
        raise Bad("'%s' is not a role" % role)
    if words.takes("of"):
        whose = words.take()
        forward = ops[op.forward]
        t = forward.tensors[forward.tensor(whose)].copy(name, t.role, t.optional)
        t.of, t.draw, t.chance = whose, ("normal", ["0", "1"]), "0.9"
        t.usual = not forward.tensors[forward.tensor(whose)].optional or t.usual
        t.types, t.same = [], None
        if words.peek() in list(TYPES) + ["like"]:
            t.types = read_choices(words, read_type)
        t.types = t.types or [(NONE, ("float", None))]
    else:
        t.kind = words.take(*sorted(CLASSES))
        if words.takes("same"):
            t.types, t.same = [(NONE, ("float", None))], words.take()
        else:
            t.types = read_choices(words, read_type)
        t.dims = read_choices(words, lambda w: w.take())
        t.usual = not t.optional
        t.chance = "0.5"
    read_attributes(op, t, words)
    op.tensors.append(t)


def read_reads(op, words, ops):
    """reads x weight bias | reads v from residual_out or x: inputs of the forward op again."""
    forward = ops[op.forward]
    while words.peek():
        name = words.take()
        sources = [name]
        if words.takes("from"):
            sources = [words.take()]
            while words.takes("or"):
                sources.append(words.take())
        source = forward.tensors[forward.tensor(sources[0])]
        t = source.copy(name, "in", source.optional and len(sources) == 1)
        if len(sources) > 1:
            t.types = [(NONE, ("float", None))]
            t.mixed, t.usual = False, True
        t.rereads = sources
        op.tensors.append(t)


def read_op_line(op, word, words, ops):
    if word == "flags":
        while words.peek():
            name, chance, excludes = words.take(), words.take(), None
            if words.takes("excludes"):
                excludes = words.take()
            op.flags.append((name, chance, excludes))
    elif word == "size":
        read_sizes(op, words, ops)
    elif word == "let":
        name = words.take()
        words.take("=")
        op.let_words.append("`%s`: %s" % (name, " ".join(words.list)))
        choices = read_choices(words, lambda w: w.take())
        terms, before = [], NONE
        for when, text in choices:
            terms += [(t, sizes, both(both(before, when), inner)) for t, sizes, inner in read_sum(text, op.lets)]
            before = both(before, negate(when)) if when != NONE else before
        op.lets[name] = terms
    elif word == "field":
        name = words.take()
        if words.takes("float"):
            op.fields.append((name, "float", [words.take()]))
        else:
            op.fields.append((name, words.take(), words.list[:]))
            words.list.clear()
    elif word == "gradient":
        op.gradient = words.take()
    elif word == "forward":
        op.forward = words.take()
        f = ops[op.forward]
        op.flags, op.sizes, op.limits, op.fields, op.lets, op.let_words, op.bench = list(f.flags), list(f.sizes), list(f.limits), list(f.fields), dict(f.lets), f.let_words, f.bench
    elif word == "reads":
        read_reads(op, words, ops)
    elif word == "bench":
        op.bench = words.take()[1:-1]
    else:
        read_tensor(op, word, words, ops)


def read_file(path, ops):
    """path: blocks of `op NAME` and indented lines."""
    op = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].rstrip()
        if not line.strip():
            continue
        try:
            words = Words(line)
            word = words.take()
            if not line[0].isspace():
                if word != "op":
                    raise Bad("unexpected '%s', expected an op" % word)
                op = Op(words.take())
                if op.name in ops:
                    raise Bad("%s is defined twice" % op.name)
                ops[op.name] = op
            else:
                read_op_line(op, word, words, ops)
            if words.peek():
                raise Bad("unexpected '%s'" % words.peek())
        except Bad as bad:
            sys.exit("%s:%d: %s" % (path, number, bad))


# ---- C ----

class Writer:
    """One op as C."""

    def __init__(self, op, ops):
        self.op, self.ops, self.terms = op, ops, []

    def when(self, when):
        masks = []
        for facts in when:
            masks.append(sum(1 << self.op.fact(f) for f in sorted(facts)))
        return "{0x%xu, 0x%xu}" % tuple(masks)

    def size(self, name):
        if name not in self.op.sizes:
            raise Bad("%s has no size '%s'" % (self.op.name, name))
        return self.op.sizes.index(name)

    def sum(self, terms):
        first = len(self.terms)
        for times, sizes, when in terms:
            index = [self.size(s) for s in sizes] + [-1, -1]
            self.terms.append("{%s, {%d, %d}, %s}" % (times, index[0], index[1], self.when(when)))
        return "{%d, %d}" % (first, len(terms))

    def bound(self, text):
        if text is None:
            return "{0, 0}"
        if text in LIMITS:
            return self.sum([(LIMITS[text], (), NONE)])
        if text == "0":
            return self.sum([(0, (), NONE)])
        return self.sum(read_sum(text, self.op.lets))

    def dims(self, when, text):
        read = [read_sum(d, self.op.lets) for d in text[1:-1].split(",")]
        sums = [self.sum(terms) for terms in read]
        only = [self.size(terms[0][1][0]) if len(terms) == 1 and terms[0][0] == 1 and len(terms[0][1]) == 1 and terms[0][2] == NONE else -1 for terms in read]
        named = sorted({self.size(s) for terms in read for _, sizes, _ in terms for s in sizes})
        return '{%s, "%s", %d, {%s}, {%s}, 0x%xu}' % (self.when(when), re.sub(r"\s", "", text), len(sums), ", ".join(map(str, (only + [-1] * 4)[:4])),
                                                  ", ".join(sums), sum(1 << s for s in named))

    def tensor(self, t):
        op, types = self.op, []
        same = op.tensor(t.same) if t.same else -1
        for when, (kind, name) in t.types:
            if kind == "like":
                types.append("{%s, 0, %d}" % (self.when(when), op.tensor(name)))
            else:
                types.append("{%s, %s, -1}" % (self.when(when), TYPES[kind]))
        places = ([op.tensor(p) for p in t.places] + [-1, -1])[:2]
        forward, gradient = self.ops.get(op.forward), self.ops.get(op.gradient)
        of = forward.tensor(t.of) if t.of else -1
        rereads = ([forward.tensor(r) for r in t.rereads] + [-1, -1])[:2]
        mine = [i for i, g in enumerate(gradient.tensors) if g.of == t.name] if gradient else []
        again = [i for i, g in enumerate(gradient.tensors) if t.name in g.rereads] if gradient else []
        kind, values = t.draw
        rows = self.size(values[0]) if kind in ("offsets", "rows") else -1
        a, b = values if len(values) == 2 else (0, 0)
        rtol, atol = ((t.bound or ["0"]) + ["1e-30"])[:2]
        draw = "{KR_DRAW_%s, %d, %d, %d, %sf, %sf, %sf, %sf, %sf}" % (
            kind.upper(), t.usual, t.mixed, rows, *("%r" % float(v) for v in (a, b, t.chance if t.optional else 1, rtol, atol)))
        absent = ['{%s, "%s"}' % (self.when(w), reason) for w, reason in t.absent]
        return ('  {"%s", offsetof(kr_%s_args, %s), %s, KR_CLASS_%s, %d, %d, {%d, %d}, %d, %d, %d, {%d, %d},\n   {%s}, {%s}, {%s}, %s},' % (
            t.name, op.name, t.name, ROLES[t.role], t.kind.upper(), t.optional, same, *places, mine[0] if mine else -1, again[0] if again else -1, of,
            *rereads, ", ".join(types), ", ".join(self.dims(w, d) for w, d in t.dims), ", ".join(absent) or "{{0, 0}, NULL}", draw))

    def limit(self, limit):
        name, multiple, low, high, when = limit
        return "  {%d, %d, %s, %s, %s}," % (self.size(name), self.size(multiple) if multiple else -1, self.bound(low), self.bound(high), self.when(when))

    def field(self, field):
        name, kind, choices = field
        place = "offsetof(kr_%s_args, %s)" % (self.op.name, name)
        if kind == "float":
            return '  {"%s", NULL, %s, KR_FIELD_FLOAT, 0, %sf},' % (name, place, choices[0])
        return '  {"%s", "%s_*", %s, KR_FIELD_CHOICE, %s, %s_%s},' % (
            name, kind, place, " | ".join("1u << %s_%s" % (kind, c) for c in choices), kind, choices[0])

    def asserts(self):
        """Every struct field is in the table, with the same kind."""
        op, lines = self.op, []
        args = "kr_%s_args" % op.name
        for names, kind in ((op.sizes, "int64_t"), ([t.name for t in op.tensors], "kr_view"), ([f[0] for f in op.fields if f[1] == "float"], "float"),
                            ([f[0] for f in op.fields if f[1] != "float"], "int32_t")):
            lines += ['_Static_assert(_Generic(&((%s *)0)->%s, %s *: 1, default: 0), "%s.%s is not a %s");' % (args, n, kind, args, n, kind) for n in names]
        names = [t.name for t in op.tensors]
        lines += ['_Static_assert(offsetof(%s, %s) < offsetof(%s, %s), "%s: %s comes before %s in its .sig");' % (args, a, args, b, args, a, b) for a, b in zip(names, names[1:])]
        padded = len(op.fields) + len(op.fields) % 2  # with `reserved`
        lines.append('_Static_assert(sizeof(%s) == sizeof(kr_call) + %d * sizeof(int64_t) + %d * 4 + %d * sizeof(kr_view), "a field of %s is not in its .sig");'
                     % (args, len(op.sizes), padded, len(op.tensors), args))
        return lines

    def text(self):
        op, name = self.op, self.op.name
        if op.bench:
            for part in op.bench.split(","):
                self.size(part.split("=")[0])
        tensors = [self.tensor(t) for t in op.tensors]
        limits = [self.limit(l) for l in op.limits]
        kinds = {"flag": lambda n: n, "given": op.tensor, "complex": op.tensor, "zero": self.size}
        facts = ["{KR_FACT_%s, %s}" % (kind.upper(), kinds[kind](n)) for kind, n in op.facts]
        if len(facts) > 32:
            raise Bad("%s needs more than 32 facts" % name)
        array = lambda kind, what, rows: ["static const kr_sig_%s %s_%s[] = {" % (kind, name, what)] + rows + ["};"] if rows else []
        lines = ["/* ---- %s ---- */" % name] + self.asserts()
        lines += array("size", "sizes", ['  {"%s", offsetof(kr_%s_args, %s)},' % (s, name, s) for s in op.sizes])
        lines += array("tensor", "tensors", tensors)
        lines += array("limit", "limits", limits)
        lines += array("field", "fields", [self.field(f) for f in op.fields])
        lines += array("fact", "facts", ["  %s," % f for f in facts])
        lines += array("term", "terms", ["  %s," % t for t in self.terms])
        lines += array("flag", "flags", ['  {"%s", %s, %sf, %s, %s},' % (f, f, float(chance), no or 0, '"%s"' % no if no else "NULL") for f, chance, no in op.flags])
        have = lambda what, rows: "%s_%s" % (name, what) if rows else "NULL"
        lines += ["const kr_sig kr_sig_%s = {" % name,
                  '  "%s", sizeof(kr_%s_args), %s,' % (name, name, " | ".join(f[0] for f in op.flags) or "0"),
                  "  &kr_op_%s, %s, %s," % (name, "&kr_sig_" + op.gradient if op.gradient else "NULL", "&kr_sig_" + op.forward if op.forward else "NULL"),
                  "  %d, %d, %d, %d, %d, %d," % (len(op.sizes), len(limits), len(op.fields), len(tensors), len(facts), len(op.flags)),
                  "  %s, %s, %s, %s_tensors," % (have("sizes", op.sizes), have("limits", limits), have("fields", op.fields), name),
                  '  %s, %s, %s, "%s"};' % (have("facts", facts), have("terms", self.terms), have("flags", op.flags), op.bench), ""]
        return "\n".join(lines)


def write_tables(out, ops, header):
    parts = ["/* Made by tools/make_sigs.py from <op>.sig. */", '#include "contract.h"', '#include "op.h"', '#include "%s"' % header, '#include "sig.h"', ""]
    parts += ["extern const kr_op kr_op_%s;\nextern const kr_sig kr_sig_%s;" % (name, name) for name in ops] + [""]
    parts += [Writer(op, ops).text() for op in ops.values()]
    out.write_text("\n".join(parts))


# ---- krait/ops.h: structs of tensors ----

FIELD_BYTES = {"int64_t": 8, "int32_t": 4, "float": 4}


def read_structs(header):
    """{op: [(type, field)]} of the args structs."""
    text = re.sub(r"/\*.*?\*/", " ", pathlib.Path(header).read_text(), flags=re.S)
    structs = {}
    for name, body in re.findall(r"typedef struct krait_(\w+)_args \{(.*?)\} krait_\w+_args;", text, re.S):
        structs[name] = [(kind, field) for kind, fields in re.findall(r"(\w+)\s+([^;]+);", body) for field in re.split(r"\s*,\s*", fields.strip())]
    return structs


class Shim:
    """What runtime/public_op.c needs of one op."""

    def __init__(self, op, fields):
        self.op, self.fields = op, fields
        self.args = "krait_%s_args" % op.name
        self.options = [f for kind, f in fields if kind in FIELD_BYTES and f != "reserved"]
        self.tensors = [f for kind, f in fields if kind == "krait_tensor"]

    def check(self):
        named = {s for t in self.op.tensors for _, text in t.dims for d in text[1:-1].split(",") for _, sizes, _ in read_sum(d, self.op.lets) for s in sizes}
        if self.tensors != [t.name for t in self.op.tensors]:
            raise Bad("the tensors of %s are not those of its .sig, in that order" % self.args)
        unknown = set(self.options) - set(self.op.sizes) - {f[0] for f in self.op.fields}
        missing = {f[0] for f in self.op.fields} - set(self.options)
        if unknown or missing:
            raise Bad("%s: %s is not in its .sig, or missing here" % (self.args, ", ".join(sorted(unknown | missing))))
        self.open = [s for s in self.options if s in named]

    def option(self, name):
        size = self.op.sizes.index(name) if name in self.op.sizes else -1
        return "  {offsetof(%s, %s), offsetof(kr_%s_args, %s), sizeof ((%s *)0)->%s, %d, %d}," % (
            self.args, name, self.op.name, name, self.args, name, size, name in self.open)

    def text(self):
        self.check()
        name, given = self.op.name, sum(FIELD_BYTES.get(kind, 0) for kind, _ in self.fields)
        lines = ["/* ---- %s ---- */" % name,
                 '_Static_assert(sizeof(%s) == sizeof(krait_call) + %d + %d * sizeof(krait_tensor), "%s has padding");' % (self.args, given, len(self.tensors), self.args)]
        lines += ["static const kr_public_option %s_options[] = {" % name, *map(self.option, self.options), "};"] if self.options else []
        lines += ["static const uint16_t %s_tensors[] = {%s};" % (name, ", ".join("offsetof(%s, %s)" % (self.args, t) for t in self.tensors)),
                  "extern const kr_op kr_op_%s;" % name,
                  "static const kr_public_op %s = {&kr_op_%s, sizeof(%s), %d, %s, %s_tensors};" % (
                      name, name, self.args, len(self.options), name + "_options" if self.options else "NULL", name),
                  "int32_t krait_%s(const krait_ctx *ctx, const %s *args) { return kr_public_run(&%s, ctx, args); }" % (name, self.args, name), ""]
        return "\n".join(lines)


def write_public(out, headers, ops):
    structs = {name: fields for header in headers for name, fields in read_structs(header).items()}
    unknown = set(structs) - set(ops)
    if unknown:
        raise Bad("%s: there is no %s.sig" % (", ".join(headers), sorted(unknown)[0]))
    parts = ["/* The operators' public functions. Made by tools/make_sigs.py from their public headers and the .sig files. */", '#include "all_ops.h"']
    parts += ["#include <krait/%s>" % pathlib.Path(header).name for header in headers] + [""]
    parts += [Shim(ops[name], fields).text() for name, fields in structs.items()]
    parts += ["const kr_public_op *const kr_public_ops[] = {%s};" % ", ".join("&" + name for name in structs), "const int32_t kr_n_public_ops = %d;" % len(structs), ""]
    out.write_text("\n".join(parts))


# ---- docs/OPS.md ----

TYPE_WORDS = {"float": "float", "any": "float, float64", "f32": "float32", "i32": "int32", "c64": "complex64", "f32|c64": "float32, complex64"}
MADE = ("<!-- made by tools/make_sigs.py: begin -->\n", "<!-- made by tools/make_sigs.py: end -->\n")


def when_words(when):
    form = {"complex": "complex %s", "zero": "%s == 0", "flag": "`%s`", "given": "%s"}
    return ("with " if when[0] else "without ") + " and ".join(form[kind] % name for kind, name in sorted(when[0] | when[1]))


def chosen_words(choices, words_of):
    return "; ".join(words_of(one) + (", %s" % when_words(when) if when != NONE else ", else" if len(choices) > 1 else "") for when, one in choices)


def tensor_row(t):
    types = chosen_words(t.types, lambda one: "that of %s" % one[1] if one[0] == "like" else TYPE_WORDS[one[0]])
    notes = ["type of %s" % t.same] if t.same else []
    notes += ["gradient of %s" % t.of] if t.of else []
    notes += ["may be %s itself" % " or ".join(t.places)] if t.places else []
    notes += ["not %s" % reason for _, reason in t.absent]
    role = {"in": "read", "out": "written", "inout": "read and written"}[t.role] + (", optional" if t.optional else "")
    return "| `%s` | %s | %s | %s | %s |" % (t.name, role, types, chosen_words(t.dims, lambda d: re.sub(r"\s", "", d)), "; ".join(notes))


def op_words(op):
    lines = ["### %s" % op.name, "", "| tensor | | type | sizes | |", "|---|---|---|---|---|"]
    lines += [tensor_row(t) for t in op.tensors] + [""]
    return lines + (["; ".join(op.let_words) + ".", ""] if op.let_words else [])


def rewrite_docs(path, ops, only_check):
    text = path.read_text()
    before, rest = text.split(MADE[0])
    made = "\n".join(line for op in ops.values() for line in op_words(op))
    new = before + MADE[0] + made + MADE[1] + rest.split(MADE[1])[1]
    if only_check and new != text:
        sys.exit("%s: the tables are out of date: run make docs" % path)
    if not only_check:
        path.write_text(new)


def main(arguments):
    ops, mode = {}, arguments.pop(0) if arguments[0].startswith("--") else None
    structs = arguments.pop(0) if mode == "--with" else "op_args.h"
    headers = [path for path in arguments if mode == "--public" and path.endswith(".h")]
    arguments = [path for path in arguments if path not in headers]
    for path in sorted(arguments[1:], key=lambda path: pathlib.Path(path).name) if mode in ("--docs", "--check-docs") else arguments[1:]:
        read_file(pathlib.Path(path), ops)
    try:
        if headers:
            write_public(pathlib.Path(arguments[0]), headers, ops)
        elif mode and mode != "--with":
            rewrite_docs(pathlib.Path(arguments[0]), ops, mode == "--check-docs")
        else:
            write_tables(pathlib.Path(arguments[0]), ops, structs)
    except Bad as bad:
        sys.exit("make_sigs: %s" % bad)


if __name__ == "__main__":
    main(sys.argv[1:])
