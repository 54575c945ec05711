#!/usr/bin/env bash
# Builds the wheel and the sdist and checks both as a user gets them:
#
#   tools/dist.sh DIST [vX.Y.Z]     into the empty or missing folder DIST; with a tag, the version must be that one
#   tools/dist.sh --notes vX.Y.Z    the changelog's section of a release
#
# Needs the packages build and twine, and git for the list of files.
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."
fail() { echo "tools/dist.sh: $*" >&2; exit 1; }
if [ "${1:-}" = --notes ]; then
  version=${2#v}
  notes=$(awk -v head="## $version" 'index($0, "## ") == 1 { on = ($0 == head || index($0, head " ") == 1); next } on' CHANGELOG.md)
  [ -n "${notes//[[:space:]]/}" ] || fail "CHANGELOG.md has no section «## $version»"
  echo "$notes"
  exit 0
fi
dist=$(cd "$from" && realpath -m "${1:?where to}")
[ -z "$(ls -A "$dist" 2>/dev/null)" ] || fail "$dist is not empty"
version=$(python -c 'import re; print(re.search(r"__version__ = \"(.+)\"", open("sglang_guards/__init__.py").read())[1])')
if [ $# -gt 1 ]; then
  [ "$2" = "v$version" ] || fail "the tag is $2, the version is $version"
  tools/dist.sh --notes "$2" >/dev/null
  ! grep -q "^## $version (unreleased)" CHANGELOG.md || fail "CHANGELOG.md says that $version is unreleased"
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} # the same commit gives the same bytes
python -m build -q --outdir "$dist" .
python -m twine check --strict "$dist"/*
wheel=$(ls "$dist"/*.whl) sdist=$(ls "$dist"/*.tar.gz)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The sdist has every file of the repository but what only the repository needs.
tar -xzf "$sdist" -C "$work"
inside=$work/sglang_guards-$version
missing=$(git ls-files | grep -Ev '^(\.github/|\.gitignore|\.pre-commit-config\.yaml)' |
  while read -r file; do [ -e "$inside/$file" ] || echo "$file"; done)
[ -z "$missing" ] || fail "the sdist lacks: $(echo "$missing" | head -5 | tr '\n' ' ')"

# The wheel has every module and data file of the package, and nothing else but its metadata.
python - "$wheel" <<'PY'
import subprocess, sys, zipfile
names = {n for n in zipfile.ZipFile(sys.argv[1]).namelist() if ".dist-info/" not in n}
tracked = set(subprocess.run(["git", "ls-files", "sglang_guards"], capture_output=True, text=True).stdout.split())
if names != tracked:
    sys.exit(f"tools/dist.sh: the wheel and the repository differ: {sorted(names ^ tracked)[:5]}")
PY

# Both install where nothing of this repository is, and say so. SGLang is not a dependency.
for file in "$wheel" "$sdist"; do
  rm -rf "$work/venv"
  python -m venv "$work/venv"
  "$work/venv/bin/pip" --disable-pip-version-check -q install "$file"
  (cd "$work" && venv/bin/sglang-guards --version && venv/bin/sglang-guards rules --format json >/dev/null)
  (cd "$work" && venv/bin/python - "$version" <<'PY'
import sys
from importlib.metadata import entry_points, requires, version
assert version("sglang-guards") == sys.argv[1]
assert [e.value for e in entry_points(group="sglang.srt.plugins")] == ["sglang_guards.plugin:register"]
assert not any(r.startswith(("sglang", "torch")) for r in requires("sglang-guards"))
from sglang_guards.plugin import register  # noqa: F401  the name that SGLang loads
PY
  )
done
echo "checked: $(cd "$dist" && ls | tr '\n' ' ')"
