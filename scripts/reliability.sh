#!/usr/bin/env bash
# Puts the figures of all runs so far into docs/reliability.md, between its two marks.
set -euo pipefail
cd "$(dirname "$0")/.."
figures=${1:-docs/figures.tsv}
page=docs/reliability.md

table() {
    echo '| campaign | seeds up to | counted |'
    echo '| --- | --- | --- |'
    awk -F'\t' '
        { if (!($1 in last) || $2 > last[$1]) last[$1] = $2
          for (i = 3; i <= NF; i++) { split($i, pair, "="); if (!(($1, pair[1]) in sum)) names[$1] = names[$1] "\t" pair[1]
              if (pair[1] !~ /^most /) sum[$1, pair[1]] += pair[2]
              else if (pair[2] > sum[$1, pair[1]]) sum[$1, pair[1]] = pair[2] } }
        END { for (campaign in last) {
                told = ""; count = split(substr(names[campaign], 2), name, "\t")
                for (i = 1; i <= count; i++) told = told (i > 1 ? ", " : "") name[i] ": " sum[campaign, name[i]]
                print "| " campaign " | " last[campaign] " | " told " |" } }' "$figures" | sort
}

awk -v table="$(table)" '
    /<!-- figures -->/ { print; print ""; print table; print ""; inside = 1 }
    /<!-- end of figures -->/ { inside = 0 }
    !inside && !/<!-- figures -->/ { print }' "$page" > "$page.new"
mv "$page.new" "$page"
