#!/bin/sh
# tools/cluster/sweep_ssh.sh [-d FOLDER] [-o OUT] HOST... [-- SWEEP OPTION...]: runs `tools/kvroof sweep` on every HOST at
# once over ssh and brings the result back as OUT/HOST.json, what it said as OUT/HOST.log. See README.md beside this.
#   -d FOLDER  the checkout on the hosts (default: kvroof, in the home folder)    -o OUT  here (default: cluster-results)
# Exit codes: 0 all hosts delivered, 1 some did not (named), 2 wrong usage.
set -eu
say() { printf 'kvroof: %s\n' "$*" >&2; }
usage() { say "$*; usage: sweep_ssh.sh [-d FOLDER] [-o OUT] HOST... [-- SWEEP OPTION...]"; exit 2; }
quoted() { printf "'"; printf '%s' "$1" | sed "s/'/'\\\\''/g"; printf "'"; }

folder=kvroof out=cluster-results
while getopts d:o: option 2>/dev/null; do
  case $option in d) folder=$OPTARG ;; o) out=$OPTARG ;; *) usage "unknown option or a missing value" ;; esac
done
shift $((OPTIND - 1))
# getopts eats a "--" that comes before the first host: then there is none.
hosts='' options='' seen=no
for word in "$@"; do
  if [ "$seen" = yes ]; then options="$options $(quoted "$word")"
  elif [ "$word" = -- ]; then seen=yes
  else
    case $word in -* | */* | *[[:space:]]* | '') usage "'$word' is no host name" ;; esac
    hosts="$hosts $word"
  fi
done
[ -n "$hosts" ] || usage "no hosts given"
mkdir -p "$out" 2>/dev/null || { say "cannot make folder $out; name a writable one with -o"; exit 2; }

# The sweep's own words go to stderr (the log), the result file alone to stdout.
sweep_on() {
  remote="cd $(quoted "$folder") && mkdir -p build && tools/kvroof sweep --no-page --out build/cluster-$(quoted "$1").json$options >&2 && cat build/cluster-$(quoted "$1").json"
  if ssh -n -o BatchMode=yes "$1" "$remote" >"$out/$1.json.part" 2>"$out/$1.log" && [ -s "$out/$1.json.part" ]; then
    mv "$out/$1.json.part" "$out/$1.json"
  else
    rm -f "$out/$1.json.part"
    return 1
  fi
}

jobs=
for host in $hosts; do
  sweep_on "$host" &
  jobs="$jobs $host:$!"
done
failed=0
for job in $jobs; do
  host=${job%:*}
  if wait "${job##*:}"; then say "$host: $out/$host.json"
  else say "$host: no result: $(tail -n 1 "$out/$host.log"); the whole log is $out/$host.log"; failed=1; fi
done
exit $failed
