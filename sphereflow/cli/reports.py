"""The command that makes a web page of a run: report."""

import sys


def add_commands(commands):
    """Add the command of this module to a set of argparse sub-parsers."""
    command = commands.add_parser("report", help="one web page of a run: a sphere to turn, linked curves, the case, the books")
    command.set_defaults(command=_report)
    command.add_argument("run", metavar="RUN", help="output file of a run (.nc)")
    command.add_argument("-o", "--output", metavar="FILE", help="the page (default: the run's name with .html)")
    command.add_argument("--particles", metavar="B", help="lay the tokens of this run over the density")
    command.add_argument("--force", action="store_true", help="move an existing page to NAME.bak")


def _report(options):
    from sphereflow.report import write_report

    made = write_report(options.run, options.output, particles=options.particles, force=options.force)
    for note in made.notes:
        print(note, file=sys.stderr)
    times = f"{made.frames} times on the sphere" if made.frames else "no sphere: the run stored neither density nor positions"
    print(f"{times}, {made.bytes / 1e6:.1f} MB")
    print(made.path)
