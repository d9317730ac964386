"""Write the parts of the documentation that are made from the code: keys, variables, commands, cases, badges.

    python docs/make_reference.py [--check]

A page marks such a part with `<!-- made from the code: NAME -->` and `<!-- end -->`; what stands between is replaced.
The badges of the README are made from setup.py. With `--check` nothing is written and the exit code tells whether something
would be.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

from pydantic_core import PydanticUndefined

from sphereflow import __version__, cli, diagnostics
from sphereflow.case import tables
from sphereflow.diagnostics import Variable

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- made from the code: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# Headings of the tables of variables in sphereflow.diagnostics; one without a heading here appears under its own name.
HEADINGS = {
    "FIELDS": "Fields of densities, each on request (`output.fields`)",
    "SCALARS": "Recorded by every run",
    "NOISE_SCALARS": "With noise on the weights",
    "FLOW_SCALARS": "With heads of a score-based variational flow (`heads.kind = \"svflow\"`)",
    "EXPERT_VARIABLES": "With experts (`model.experts`)",
    "HEAD_VARIABLES": "Weights at the records",
    "VALUE_VARIABLES": "With value matrices of their own",
    "MOVEMENT_SCALARS": "Minimising movements",
    "POSITION": "Tokens, on request (`output.fields`)",
    "TOKEN_FIELDS": "At the tokens, each on request (`output.fields`)",
    "PARTICLE_WEIGHT": "Tokens",
    "MEAN_VECTOR": "Tokens in more than three dimensions, instead of `mean_x`, `mean_y`, `mean_z`",
}


def table(header, rows):
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def variables_of(value):
    """The variables in a value of the module diagnostics, or nothing if it holds no others."""
    if isinstance(value, Variable):
        return [value]
    if isinstance(value, dict):
        return [v for item in value.values() for v in variables_of(item)]
    if isinstance(value, tuple) and all(isinstance(item, Variable) for item in value):
        return list(value)
    return []


def variables():
    """Tables of all variables that a run can write."""
    pieces = []
    for name, value in vars(diagnostics).items():
        if found := variables_of(value):
            rows = [[f"`{v.name}`", ", ".join(v.dims), v.units, v.long_name] for v in found]
            pieces.append(f"**{HEADINGS.get(name, name)}**\n")
            pieces.append(table(["name", "dimensions", "units", "meaning"], rows))
    return "\n".join(pieces)


def default_of(field):
    """Default of a key as it would stand in a case file."""
    if field.default is PydanticUndefined:
        return "must be given"
    if field.default is None:
        return ""  # the description says it
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, str):
        return f'`"{field.default}"`' if field.default else '`""`'
    if isinstance(field.default, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in field.default) + "]`"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"


def rows_of(fields):
    """Table of keys, from the fields of a class by name."""
    rows = [[f"`{f.alias or name}`", default_of(f), f.description] for name, f in fields.items()]
    return table(["key", "default", "meaning"], rows)


def shared_fields(classes):
    """Fields that all classes have and at most one of them in a form of its own."""
    classes, shared = list(classes), {}
    for name in classes[0].model_fields:
        forms = [cls.model_fields[name] for cls in classes if name in cls.model_fields]
        for form in forms[:2]:
            alike = sum(repr(form) == repr(other) for other in forms)
            if len(forms) == len(classes) and alike >= max(2, len(classes) - 1):
                shared[name] = form
    return shared


def keys():
    """Tables of all keys of a case."""
    outside = {name: field for name, field in tables.Case.model_fields.items() if name not in tables.TABLES}
    pieces = ["### Outside of the tables\n", rows_of(outside)]
    for name in tables.TABLES:
        kinds = tables.variants(name)
        pieces.append(f"### `[{name}]`\n")
        if name not in tables.KIND_KEYS:
            pieces.append(rows_of(kinds[""].model_fields))
            for (outer, inner), cls in tables.NESTED.items():
                if outer == name:
                    brackets = "[[{}]]" if cls.__doc__.startswith("``[[") else "[{}]"
                    pieces += [f"### `{brackets.format(f'{outer}.{inner}')}`\n", rows_of(cls.model_fields)]
            continue
        key, default = tables.KIND_KEYS[name]
        choices = ", ".join(f"`{kind}`" for kind in kinds)
        stated = "must be given" if default is None else f"`{default}` unless given"
        pieces.append(f"`{key}` is one of {choices}; {stated}.\n")
        shared = shared_fields(kinds.values())
        if shared:
            pieces += [f"With every `{key}`:\n", rows_of(shared)]
        for kind, cls in kinds.items():
            fields = cls.model_fields
            own = {k: f for k, f in fields.items() if k != key and repr(f) != repr(shared.get(k))}
            pieces.append(f'With `{key} = "{kind}"`: {fields[key].description}\n')
            if own:
                pieces.append(rows_of(own))
    return "\n".join(pieces)


def commands():
    """Usage and arguments of all commands of the command line."""
    parser = cli._parser()
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    pieces = []
    for choice in group._choices_actions:
        command = group.choices[choice.dest]
        about = command.description or choice.help
        pieces.append(f"### `sphereflow {choice.dest}`\n\n{about[0].upper()}{about[1:]}{'' if about.endswith('.') else '.'}\n")
        rows = [[f"`{invocation(action)}`", action.help] for action in command._actions if action.dest != "help"]
        if rows:
            pieces.append(table(["argument", "meaning"], rows))
    return "\n".join(pieces)


def invocation(action):
    """How an argument is written on the command line."""
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if not action.option_strings:
        return value
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"


def cases():
    """Table of all cases that come with sphereflow."""
    rows = []
    for path in sorted((DOCS.parent / "cases").rglob("*.toml"), key=lambda path: (len(path.parts), path)):
        with open(path, "rb") as file:
            case = tomllib.load(file)
        name = path.relative_to(DOCS.parent / "cases").with_suffix("").as_posix()
        solver = case["solver"].get("kind", "finite-volume")
        rows.append([f"[{name}](../cases/{name}.toml)", case["title"], f"`{solver}`"])
    return table(["case", "what it is", "solver"], rows)


MAKERS = {"keys": keys, "variables": variables, "commands": commands, "cases": cases}

BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {value}">
<rect width="{width}" height="20" rx="3" fill="#555"/><rect x="{middle}" width="{rest}" height="20" rx="3" fill="#0b6fa4"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14" textLength="{name_length}">{name}</text>
<text x="{start}" y="14" textLength="{value_length}">{value}</text></g></svg>
"""


def badges():
    """The badges of the README, name of the file -> content: what setup.py states."""
    setup = (DOCS.parent / "setup.py").read_text(encoding="utf-8")
    stated = {
        "version": __version__,
        "python": "&#8805; " + re.search(r'python_requires=">=([^"]+)"', setup)[1],
        "licence": re.search(r'license="([^"]+)"', setup)[1],
    }
    return {f"badge-{name}.svg": badge(name, value) for name, value in stated.items()}


def badge(name, value):
    """One badge, seven pixels for a letter."""
    lengths = 7 * len(name), 7 * len(re.sub("&#[0-9]+;", "x", value))
    middle = lengths[0] + 12
    return BADGE.format(
        name=name, value=value, name_length=lengths[0], value_length=lengths[1], middle=middle, start=middle + 6,
        rest=lengths[1] + 12, width=middle + lengths[1] + 12,
    )  # fmt: skip


def made():
    """All that is made: file -> content."""
    pages = {page: up_to_date(page.read_text(encoding="utf-8")) for page in sorted(DOCS.glob("*.md"))}
    return pages | {DOCS / "images" / name: content for name, content in badges().items()}


def up_to_date(text):
    """The text of a page with all its parts made anew."""
    return PART.sub(lambda part: f"{part[1]}\n{MAKERS[part[2]]()}\n{part[3]}", text)


def main(arguments=None):
    """Rewrite, or check, all pages; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, only tell what is out of date")
    options = parser.parse_args(arguments)
    stale = []
    for file, content in made().items():
        if not file.exists() or file.read_text(encoding="utf-8") != content:
            stale.append(file.name)
            if not options.check:
                file.write_text(content, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date, run docs/make_reference.py' if options.check else 'written'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
