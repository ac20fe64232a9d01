#!/bin/bash
# docs/params.md is what `gantry doctor --params-markdown` prints, and every parameter of params.def is in it.
# To mend it: gantry doctor --params-markdown >docs/params.md
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
page=$SOURCE_DIR/docs/params.md
tool=${BUILD_DIR:?the folder of the build}/gantry
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

[ -x "$tool" ] || fail "$tool was not built"
"$tool" doctor --params-markdown >"$scratch/now" || fail "gantry doctor --params-markdown exits with $?"
diff -u "$page" "$scratch/now" || fail "docs/params.md is out of date; see the top of this script"

# The page is about defaults: it does not depend on what is set, and it tells no secret.
GANTRY_LANES=3 GANTRY_SECRET=hunter2 "$tool" doctor --params-markdown >"$scratch/set" ||
	fail "gantry doctor --params-markdown with parameters set exits with $?"
diff -u "$page" "$scratch/set" || fail "the page depends on the environment"

# By another way than the table's own: the names as they stand in params.def.
names=$(sed -nE 's/^P_[A-Z]+\([a-z_0-9]+, "([A-Z_0-9]+)".*/\1/p' "$SOURCE_DIR/src/base/params.def")
[ -n "$names" ] || fail "no names found in params.def"
for name in $names; do
	grep -qF "## \`$name\`" "$page" || fail "$name is missing in docs/params.md"
done
[ "$(grep -c '^## ' "$page")" -eq "$(wc -l <<<"$names")" ] || fail "docs/params.md has parameters that params.def has not"
echo "docs/params.md has all $(wc -l <<<"$names") parameters"
