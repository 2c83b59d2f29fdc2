"""PTX instructions that are known, each as a C++ statement over mkport/machines/host/ptx.h.

An operand is the name of a register's variable, or a number. What is not understood in full, a
modifier too, is unknown.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from mkport.port.lexer import split_list

TYPES = {
    "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "b16": "uint16_t", "u16": "uint16_t",
    "s16": "int16_t", "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t", "b64": "uint64_t",
    "u64": "uint64_t", "s64": "int64_t", "f32": "float", "f64": "double", "f16": "__half",
    "f16x2": "__half2", "bf16": "__nv_bfloat16", "bf16x2": "__nv_bfloat162", "pred": "uint32_t",
}  # fmt: skip
FLOATS = ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
SPECIAL = {
    "%laneid": "mk_lane()", "%lanemask_eq": "(1u << mk_lane())",
    "%lanemask_lt": "((1u << mk_lane()) - 1)", "%lanemask_le": "((2u << mk_lane()) - 1)",
    "%lanemask_gt": "(~0u << mk_lane() << 1)", "%lanemask_ge": "(~0u << mk_lane())",
    "WARP_SZ": "32",
}  # fmt: skip
# Words that change nothing that a CPU shows.
HINTS = re.compile(
    r"volatile|weak|relaxed|cta|gpu|sys|global|shared|shared::cta|generic|ca|cg|cs|lu|cv|wb|wt|"
    r"L1::\w+|L2::\w+|aligned|sync|ftz"
)
RESULT = "{d} = mk_ptx::put<{T}>({e});"


class Unknown(Exception):
    """An instruction, a modifier or an operand that is not known."""


class Operands:
    """The operands of one instruction, as C++."""

    def __init__(self, texts: Sequence[str], names: Mapping[str, str]) -> None:
        self.texts = texts
        self.names = names

    def __len__(self) -> int:
        return len(self.texts)

    def register(self, at: int) -> str:
        """A register that is written. Raises Unknown for what is none."""
        name = self.names.get(self.texts[at])
        if name is None:
            raise Unknown(self.texts[at])
        return name

    def raw(self, at: int, text: str | None = None) -> str:
        """An operand's 64 bits. Raises Unknown for a name that is not known."""
        text = self.texts[at] if text is None else text
        if text in self.names:
            return self.names[text]
        if text in SPECIAL:
            return f"mk_ptx::R({SPECIAL[text]})"
        if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", text):
            return f"mk_ptx::R({text.rstrip('U')}{'' if text.startswith('-') else 'ull'})"
        if found := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            return f"mk_ptx::R(0x{found[1]}u)"
        if found := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
            return f"mk_ptx::R(0x{found[1]}ull)"
        raise Unknown(text)

    def value(self, at: int, kind: str) -> str:
        """An operand as a number of a type."""
        if re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", self.texts[at]) and kind in ("f32", "f64"):
            return f"{TYPES[kind]}({self.texts[at]})"
        return f"mk_ptx::get<{TYPES[kind]}>({self.raw(at)})"

    def vector(self, at: int) -> list[str]:
        """The registers of a vector; one for an operand that is none."""
        text = self.texts[at]
        if not text.startswith("{"):
            return [self.raw(at)]
        return [self.raw(at, part) for part in split_list(text[1:-1])]

    def address(self, at: int) -> tuple[str, str]:
        """A register in brackets, and what is added to it. Raises Unknown for another place."""
        found = re.fullmatch(r"\[\s*([^\s+]+)\s*(?:\+\s*(-?\w+)\s*)?\]", self.texts[at])
        if found is None:
            raise Unknown(self.texts[at])
        return self.raw(at, found[1]), self.raw(at, found[2]) if found[2] else "0"


def instruction(text: str, names: Mapping[str, str]) -> str:
    """One instruction as a C++ statement. Raises Unknown for what is not known."""
    found = re.fullmatch(r"(?:@(!?)(%?\w+)\s+)?([a-z]\w*(?:\.[\w:]+)*)\s*(.*)", text, re.DOTALL)
    if found is None:
        raise Unknown(text)
    no, guard, name, rest = found.groups()
    word, *modifiers = name.split(".")
    split = [part.strip() for part in split_list(rest)]
    parts = [p for part in split for p in (part.split("|") if "|" in part else [part])]
    made = _made(word, modifiers, Operands(parts, names), "|" in rest)
    if guard:
        if guard not in names:
            raise Unknown(guard)
        return f"if ({no}{names[guard]}) {{ {made} }}"
    return made


def _made(word: str, modifiers: list[str], o: Operands, two: bool) -> str:
    special = SPECIALS.get(word)
    if special is not None:
        return special(modifiers, o, two)
    if word not in PLAIN or not modifiers or modifiers[-1] not in TYPES or two:
        raise Unknown(word)
    kind = modifiers[-1]
    given = [m for m in modifiers[:-1] if m not in ("rn", "ftz", "approx", "full", "lo")]
    if given == ["hi"] and word in ("mul", "mad") and kind not in FLOATS:
        word = f"{word}.hi"
    elif given == ["wide"] and word in ("mul", "mad") and kind in ("s32", "u32", "s16", "u16"):
        wide = {"s32": "s64", "u32": "u64", "s16": "s32", "u16": "u32"}[kind]
        a, b = (f"{TYPES[wide]}({o.value(n, kind)})" for n in (1, 2))
        c = f" + {o.value(3, wide)}" if word == "mad" else ""
        return RESULT.format(d=o.register(0), T=TYPES[wide], e=f"{a} * {b}{c}")
    elif given:
        raise Unknown(".".join(modifiers))
    count, expression = PLAIN[word]
    if (
        len(o) != count + 1
        or (word in ONLY_F32 and kind != "f32")
        or (word in ONLY_BITS and kind != "b32")
    ):
        raise Unknown(word)
    if word == "abs" and kind in FLOATS:
        expression = ABSOLUTE.get(kind, "__habs2({0})" if "x2" in kind else "__habs({0})")
    values = [o.value(n + 1, kind) for n in range(count)]
    if word in ("shl", "shr"):
        values[1] = o.value(2, "u32")
    if word in ("bfe", "bfi"):
        values[-2:] = [o.value(count - 1, "u32"), o.value(count, "u32")]
    flush = "ftz" in modifiers and kind == "f32"
    values = [f"mk_ptx::flushed({v})" for v in values] if flush else values
    e = expression.format(*values)
    result = "uint32_t" if word in ("popc", "clz") else TYPES[kind]
    return RESULT.format(d=o.register(0), T=result, e=f"mk_ptx::flushed({e})" if flush else e)


PLAIN = {
    "add": (2, "mk_ptx::sum({0}, {1})"), "sub": (2, "mk_ptx::difference({0}, {1})"),
    "mul": (2, "mk_ptx::product({0}, {1})"), "mul.hi": (2, "mk_ptx::high({0}, {1})"),
    "mad": (3, "mk_ptx::sum(mk_ptx::product({0}, {1}), {2})"),
    "mad.hi": (3, "mk_ptx::sum(mk_ptx::high({0}, {1}), {2})"),
    "fma": (3, "mk_ptx::fused({0}, {1}, {2})"), "div": (2, "{0} / {1}"),
    "min": (2, "mk_ptx::least({0}, {1})"), "max": (2, "mk_ptx::most({0}, {1})"),
    "neg": (1, "-({0})"), "abs": (1, "({0} < 0 ? -({0}) : {0})"), "not": (1, "~({0})"),
    "and": (2, "{0} & {1}"), "or": (2, "{0} | {1}"), "xor": (2, "{0} ^ {1}"),
    "shl": (2, "mk_ptx::shifted_left({0}, {1})"), "shr": (2, "mk_ptx::shifted_right({0}, {1})"),
    "bfe": (3, "mk_ptx::field({0}, {1}, {2})"), "bfi": (4, "mk_ptx::inserted({0}, {1}, {2}, {3})"),
    "prmt": (3, "__byte_perm({0}, {1}, {2})"), "lop3": (4, "mk_ptx::logic({0}, {1}, {2}, {3})"),
    "popc": (1, "__builtin_popcountll({0})"), "brev": (1, "__brev({0})"),
    "ex2": (1, "exp2f({0})"), "lg2": (1, "log2f({0})"), "rcp": (1, "1.0f / {0}"),
    "rsqrt": (1, "1.0f / sqrtf({0})"), "sqrt": (1, "sqrtf({0})"), "sin": (1, "sinf({0})"),
    "cos": (1, "cosf({0})"), "tanh": (1, "tanhf({0})"),
}  # fmt: skip
ABSOLUTE = {"f32": "fabsf({0})", "f64": "fabs({0})"}
ONLY_BITS = ("prmt", "lop3", "brev", "bfi")
ONLY_F32 = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")


def _hinted(modifiers: Sequence[str], known: Sequence[str] = ()) -> list[str]:
    """The modifiers that say something. Raises Unknown for one that is neither hint nor known."""
    for one in modifiers:
        if not HINTS.fullmatch(one) and one not in known:
            raise Unknown(one)
    return [one for one in modifiers if one in known]


def _place(modifiers: Sequence[str], o: Operands, at: int, kind: str) -> str:
    register, more = o.address(at)
    inside = "shared" if {"shared", "shared::cta"} & set(modifiers) else "global"
    return f"mk_ptx::{inside}<{TYPES[kind]}>({register}, {more})"


def _memory(load: bool) -> Callable[[list[str], Operands, bool], str]:
    def made(modifiers: list[str], o: Operands, two: bool) -> str:
        kind = modifiers[-1]
        if kind not in TYPES or kind == "pred" or two:
            raise Unknown(kind)
        count = int((_hinted(modifiers[:-1], ("v2", "v4")) or ["v1"])[0][1:])
        registers, place = o.vector(0 if load else 1), _place(modifiers, o, 1 if load else 0, kind)
        if len(registers) != count or len(o) > 3:
            raise Unknown(str(count))
        lines = [f"{TYPES[kind]}* mk_p = {place};"]
        for n, register in enumerate(registers):
            lines.append(
                f"{register} = mk_ptx::load(mk_p + {n});" if load
                else f"mk_ptx::store(mk_p + {n}, {register});"
            )  # fmt: skip
        return f"{{ {' '.join(lines)} }}"

    return made


def _mov(modifiers: list[str], o: Operands, two: bool) -> str:
    if len(modifiers) != 1 or modifiers[0] not in TYPES or len(o) != 2:
        raise Unknown("mov")
    to, source = o.vector(0), o.vector(1)
    bits = {"b32": 32, "b64": 64}.get(modifiers[0], 0)
    if len(to) == len(source) == 1:
        return f"{o.register(0)} = {source[0]};"
    if not bits or {len(to), len(source)} != {1, 2}:
        raise Unknown("mov")
    mask = f"((mk_ptx::R(1) << {bits // 2}) - 1)"
    if len(to) == 1:
        return f"{to[0]} = ({source[0]} & {mask}) | ({source[1]} & {mask}) << {bits // 2};"
    lines = f"mk_ptx::R mk_all = {source[0]}; {to[0]} = mk_all & {mask};"
    return f"{{ {lines} {to[1]} = mk_all >> {bits // 2} & {mask}; }}"


def _cvt(modifiers: list[str], o: Operands, two: bool) -> str:
    *how, to, source = modifiers
    if to not in TYPES or source not in TYPES or set(how) - {"rn", "rni", "rzi", "rmi", "rpi", "rz",
                                                             "ftz", "rna"}:  # fmt: skip
        if modifiers == ["rna", "tf32", "f32"]:
            return f"{o.register(0)} = mk_ptx::tf32({o.value(1, 'f32')});"
        raise Unknown("cvt")
    x = o.value(1, source)
    if to in ("f16x2", "bf16x2") and source == "f32" and how == ["rn"] and len(o) == 3:
        both = "__floats2half2_rn" if to == "f16x2" else "__floats2bfloat162_rn"
        e = f"{both}({o.value(2, source)}, {x})"
        return RESULT.format(d=o.register(0), T=TYPES[to], e=e)
    if len(o) != 2 or "x2" in to or "x2" in source:
        raise Unknown("cvt")
    if to in FLOATS:
        if how not in ([], ["rn"], ["ftz"], ["rn", "ftz"]):
            raise Unknown("cvt")
        e = f"{TYPES[to]}({x if source not in ('f16', 'bf16') else f'float({x})'})"
    elif source in FLOATS:
        ways = {"rni": "near", "rzi": "cut", "rmi": "below", "rpi": "above"}
        way = [ways[h] for h in how if h in ways]
        if len(way) != 1 or source in ("f16", "bf16"):
            raise Unknown("cvt")
        e = f"mk_whole<{TYPES[to]}>(mk_{way[0]}({x}))"
    else:
        e = f"{TYPES[to]}({x})"
    return RESULT.format(d=o.register(0), T=TYPES[to], e=e)


def _setp(modifiers: list[str], o: Operands, two: bool) -> str:
    kind = modifiers[-1]
    operators = {
        "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=",
        "hi": ">", "hs": ">=",
    }  # fmt: skip
    if (
        len(modifiers) != 2
        or two
        or modifiers[0] not in operators
        or len(o) != 3
        or (kind not in TYPES or "x2" in kind)
    ):
        raise Unknown("setp")
    a, b = o.value(1, kind), o.value(2, kind)
    ordered = f" && {a} == {a} && {b} == {b}" if modifiers[0] == "ne" and kind in FLOATS else ""
    return f"{o.register(0)} = {a} {operators[modifiers[0]]} {b}{ordered};"


def _selp(modifiers: list[str], o: Operands, two: bool) -> str:
    if len(modifiers) != 1 or len(o) != 4:
        raise Unknown("selp")
    return f"{o.register(0)} = {o.raw(3)} ? {o.raw(1)} : {o.raw(2)};"


def _cp(modifiers: list[str], o: Operands, two: bool) -> str:
    if modifiers[:1] != ["async"]:
        raise Unknown("cp")
    rest = modifiers[1:]
    if rest == ["commit_group"]:
        return "mk_ptx::end_copies();"
    if rest == ["wait_group"] and re.fullmatch(r"%\d+|%\[\w+\]|\d+", o.texts[0]):
        return f"mk_ptx::wait_copies(int({o.raw(0)}));"
    if rest == ["wait_all"]:
        return "mk_ptx::end_copies(); mk_ptx::wait_copies(0);"
    _hinted(rest)
    if rest[:1] not in (["ca"], ["cg"]) or "global" not in rest or len(o) not in (3, 4):
        raise Unknown("cp.async")
    if any("cache_hint" in one for one in rest):
        raise Unknown("cache_hint")
    to, more = o.address(0)
    source, further = o.address(1)
    there = o.raw(3) if len(o) == 4 else o.raw(2)
    return f"mk_ptx::copy({to}, {more}, {source}, {further}, int({o.raw(2)}), int({there}));"


def _ldmatrix(modifiers: list[str], o: Operands, two: bool) -> str:
    known = _hinted(modifiers, ("m8n8", "x1", "x2", "x4", "trans", "b16"))
    counts = [int(one[1:]) for one in known if one in ("x1", "x2", "x4")]
    registers = o.vector(0)
    if len(counts) != 1 or len(registers) != counts[0] or "m8n8" not in known:
        raise Unknown("ldmatrix")
    register, more = o.address(1)
    turned = "true" if "trans" in known else "false"
    lines = [
        f"mk_ptx::R mk_m[4]; mk_ptx::matrices<{counts[0]}, {turned}>(mk_m, {register}, {more});"
    ]
    lines += [f"{one} = mk_m[{n}];" for n, one in enumerate(registers)]
    return f"{{ {' '.join(lines)} }}"


def _mma(modifiers: list[str], o: Operands, two: bool) -> str:
    shape, *rest = [one for one in modifiers if one not in ("sync", "aligned")]
    if shape not in ("m16n8k16", "m16n8k8") or rest[:2] != ["row", "col"] or len(o) != 4:
        raise Unknown("mma")
    d, a, b, c = rest[2:] if len(rest) == 6 else ("", "", "", "")
    if (
        a != b
        or d != c
        or a not in ("f16", "bf16")
        or d not in ("f32", "f16")
        or (d == "f16" and a != "f16")
    ):
        raise Unknown("mma")
    size = int(shape.split("k")[1])
    way = "product_float" if d == "f32" else "product_half"
    lists = [o.vector(n) for n in range(4)]
    wanted = [4 if d == "f32" else 2, size // 4, size // 8, 4 if d == "f32" else 2]
    if [len(one) for one in lists] != wanted:
        raise Unknown("mma")
    given = "; ".join(
        f"mk_ptx::R mk_{'abc'[n]}[] = {{{', '.join(one)}}}" for n, one in enumerate(lists[1:])
    )
    results = " ".join(f"{one} = mk_d[{n}];" for n, one in enumerate(lists[0]))
    call = f"mk_ptx::{way}<{TYPES[a]}, {size}>(mk_d, mk_a, mk_b, mk_c);"
    return f"{{ {given}; mk_ptx::R mk_d[4]; {call} {results} }}"


def _shfl(modifiers: list[str], o: Operands, two: bool) -> str:
    if modifiers[0] != "sync" or modifiers[2:] != ["b32"] or len(o) != 5 + two:
        raise Unknown("shfl")
    way = {"up": "u", "down": "d", "bfly": "b", "idx": "i"}.get(modifiers[1])
    if way is None:
        raise Unknown("shfl")
    first = 1 + two
    values = [o.raw(first + n) for n in range(4)]
    there = f", &{o.register(1)}" if two else ""
    return f"{o.register(0)} = mk_ptx::shuffled('{way}', {', '.join(values)}{there});"


def _cvta(modifiers: list[str], o: Operands, two: bool) -> str:
    if modifiers in (["to", "shared", "u64"], ["to", "shared", "u32"]):
        return f"{o.register(0)} = uint32_t({o.raw(1)});"
    if modifiers in (["to", "global", "u64"], ["global", "u64"]):
        return f"{o.register(0)} = {o.raw(1)};"
    raise Unknown("cvta")


def _nothing(modifiers: list[str], o: Operands, two: bool) -> str:
    return ";"


SPECIALS: dict[str, Callable[[list[str], Operands, bool], str]] = {
    "ld": _memory(True), "st": _memory(False), "mov": _mov, "cvt": _cvt, "setp": _setp,
    "selp": _selp, "cp": _cp, "ldmatrix": _ldmatrix, "mma": _mma, "shfl": _shfl, "cvta": _cvta,
    "prefetch": _nothing, "prefetchu": _nothing, "griddepcontrol": _nothing,
}  # fmt: skip
