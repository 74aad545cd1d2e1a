#!/usr/bin/env bash
# Puts the figures of all runs so far into docs/reliability.md, between its two marks.
set -euo pipefail
cd "$(dirname "$0")/.."
figures=${1:-docs/figures.tsv}
page=docs/reliability.md

table() {
    echo '| campaign | last seed | counted | counted since the last failure |'
    echo '| --- | --- | --- | --- |'
    awk -F'\t' '
        # Some awks print large numbers with an exponent.
        function digits(n) { return sprintf("%.0f", n) }
        function count(campaign, name, n) {
            if (name !~ /^most /) since[campaign, name] += n
            else if (n > since[campaign, name]) since[campaign, name] = n }
        { if (!($1 in last) || $2 + 0 > last[$1]) last[$1] = $2 + 0
          # Lines are in the order in which they were counted.
          if ($0 ~ /\tfailures=[1-9]/) { failed[$1] = 1; for (key in since) { split(key, part, SUBSEP); if (part[1] == $1) delete since[key] } }
          else for (i = 3; i <= NF; i++) { split($i, pair, "="); count($1, pair[1], pair[2]) }
          for (i = 3; i <= NF; i++) { split($i, pair, "="); if (!(($1, pair[1]) in sum)) names[$1] = names[$1] "\t" pair[1]
              if (pair[1] !~ /^most /) sum[$1, pair[1]] += pair[2]
              else if (pair[2] > sum[$1, pair[1]]) sum[$1, pair[1]] = pair[2] } }
        END { for (campaign in last) {
                told = later = ""; many = split(substr(names[campaign], 2), name, "\t")
                for (i = 1; i <= many; i++) {
                    told = told (i > 1 ? ", " : "") name[i] ": " digits(sum[campaign, name[i]])
                    if ((campaign, name[i]) in since) later = later (later ? ", " : "") name[i] ": " digits(since[campaign, name[i]]) }
                if (!failed[campaign]) later = "all"
                else if (later == "") later = "nothing"
                print "| " campaign " | " digits(last[campaign]) " | " told " | " later " |" } }' "$figures" | sort
}

awk -v table="$(table)" '
    /<!-- figures -->/ { print; print ""; print table; print ""; inside = 1 }
    /<!-- end of figures -->/ { inside = 0 }
    !inside && !/<!-- figures -->/ { print }' "$page" > "$page.new"
mv "$page.new" "$page"
