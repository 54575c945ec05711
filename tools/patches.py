"""Patch series for SGLang releases: check | apply TREE | refresh REPOSITORY | port SERIES RELEASE.

    python tools/patches.py check --all            every series on its release; --ci: one per shape of resolution
    python tools/patches.py apply ~/src/sglang     a git checkout (git am) or the folder that holds the package
    python tools/patches.py apply --reverse SITE   undo it on a package
    python tools/patches.py refresh REPO --series v0.5.24 --release 0.5.24

A run that was killed is no harm: `apply` goes on where it stopped, `apply --reverse` goes back.

Exit codes: 0 done, 1 a check failed or the tree was refused (the last line says how it was left), 2 bad usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.patchseries import apply, check, checkout, durable, package, pull_requests, trees  # noqa: E402
from tools.patchseries.apply import Refused  # noqa: E402
from tools.patchseries.manifest import Series, dump, for_ci, load, selected  # noqa: E402
from tools.patchseries.refresh import refresh, replaced, scratch  # noqa: E402

_AGAIN = "apply goes on where this one stopped, apply --reverse goes back"


def _check(args: argparse.Namespace) -> int:
    every = load()
    chosen = every if args.all else for_ci(every) if args.ci else selected(every, args.series)
    if not chosen:
        raise ValueError("name a series, or say --all or --ci")
    options = check.Options(trees=args.trees, wheels=args.wheels, tests=not args.no_tests)
    if args.all or args.ci:
        chosen = [*chosen, *pull_requests.all_of_them()]
    failed = 0
    with ThreadPoolExecutor(max_workers=args.jobs) as pool:
        for outcome in pool.map(lambda one: _checked(one, options), chosen):
            state = "FAIL" if outcome.failures else "pass"
            notes = ", ".join([f"{len(outcome.series.patches)} patches", *outcome.notes])
            print(f"{state}  {outcome.series.name:<36} {notes} · {outcome.seconds:.0f} s", flush=True)
            for failure in outcome.failures:
                print(f"      {failure}", flush=True)
            failed += bool(outcome.failures)
    print(f"{len(chosen) - failed} of {len(chosen)} series pass")
    return 1 if failed else 0


def _checked(one: Series, options: check.Options) -> check.Outcome:
    return (pull_requests if one.name.startswith("upstream-pr/") else check).check(one, options)


def _apply(args: argparse.Namespace) -> int:
    target = args.tree.resolve()
    kind = apply.kind_of(target)
    if kind == "tarball":
        raise Refused(f"{target} has no .git; apply to {target / 'python'} as a package instead")
    if args.reverse and kind == "package":
        print(f"{package.reverse(target)}: the original files are in {target}")
        return 0
    if args.reverse:
        print(f"{checkout.reverse(target)}: {target} is at the commit before")
        return 0
    every = load()

    def choose() -> Series:
        return selected(every, [args.series])[0] if args.series else apply.choose(every, target)

    if kind == "package":
        named = choose().name if args.series else None
        done = package.apply(target, named, choose)
        how = "an interrupted run is finished, " if done.resumed else ""
        print(f"{done.series}: {how}applied to {target}, tests left out; originals are in {done.backup}")
        print(f"undo: python tools/patches.py apply --reverse {args.tree}")
        return 0
    series, before = checkout.apply(target, choose)
    print(f"{series.name}: {len(series.patches)} patches applied with git am to {target}")
    print(f"undo: git -C {args.tree} reset --keep {before[:12]}")
    return 0


def _refresh(args: argparse.Namespace) -> int:
    series = refresh(args.repository, args.series, tuple(args.release))
    dump(replaced(series))
    print(f"{series.name}: {len(series.patches)} patches, tree {series.tree}")
    return 0


def _port(args: argparse.Namespace) -> int:
    series = selected(load(), [args.series])[0]
    print(scratch(series, args.release, args.out, args.trees))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("check", help="check series on their releases")
    one.add_argument("series", nargs="*", help="series, tag or release")
    one.add_argument("--all", action="store_true")
    one.add_argument("--ci", action="store_true", help="oldest, one per shape of resolution, newest")
    one.add_argument("--trees", type=Path, default=trees.DEFAULT, help="one unpacked wheel per release")
    one.add_argument("--wheels", type=Path, help="take the touched files from wheels in this folder instead")
    one.add_argument("--no-tests", action="store_true", help="no torch here: leave out the series' own tests")
    one.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    one.set_defaults(run=_check)
    one = commands.add_parser("apply", help="apply a series to a tree, or change nothing")
    one.add_argument("tree", type=Path)
    one.add_argument("--series", help="default: the one for this tree")
    one.add_argument("--reverse", action="store_true", help="put the originals back (package only)")
    one.set_defaults(run=_apply)
    one = commands.add_parser(
        "refresh", help="write a series from a repository's commits after its tag `base`"
    )
    one.add_argument("repository", type=Path)
    one.add_argument("--series", required=True)
    one.add_argument(
        "--release", nargs="+", required=True, help="releases that share it, the checked one last"
    )
    one.set_defaults(run=_refresh)
    one = commands.add_parser("port", help="draft a series for another release, in a repository to review")
    one.add_argument("series")
    one.add_argument("release")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--trees", type=Path, default=trees.DEFAULT)
    one.set_defaults(run=_port)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except Refused as reason:
        print(f"refused: {reason}\n{reason.left}", file=sys.stderr)
        return 1
    except durable.Busy as reason:
        print(f"refused: {reason}\nnothing was changed by this one", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "interrupted: run the same command again to go on, or apply --reverse to go back", file=sys.stderr
        )
        return 130
    except OSError as error:
        print(f"error: {error}\n{_AGAIN}", file=sys.stderr)
        return 1
    except (ValueError, trees.Missing) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
