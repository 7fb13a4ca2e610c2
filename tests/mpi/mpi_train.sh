#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# knapformer train as its users start it: under mpirun, and alone, when it starts its ranks itself.
#
#   losses     the same on 1, 2, 4 and 16 ranks, with and without the balancer, whole or split
#   files      report, trace, steps, metrics, state: there, sound, and gone on from
#   refusals   said once, by one rank, before anything is computed where it can be known before
#   faults     a rank is killed, another falls silent: the job ends, and nothing of it is left
#
# KF_PROGRAM and KF_MPIRUN say what to run, and by what.
set -uo pipefail
. "$KF_SOURCE/tests/tools/wait_until.sh"
program=$(realpath "$KF_PROGRAM")
limit=300 # seconds, of any run: only to end what hangs
tiny=(--model d=32,layers=2,heads=4 --scale 0.01)
work=$(mktemp -d)

# What is left of a job, whose name is a path of ours: only its own processes have it as an argument.
processes() { pgrep -f -- "$1"; }
nothing_left() { [ -z "$(processes "$1")" ]; }
end_all() {
  local pid
  for pid in $(processes "$work/"); do kill -KILL "$pid"; done
}
trap 'end_all; rm -rf "$work"' EXIT
cd "$work" || exit 1

# complain SENTENCE [FILE]: with what the file holds. All is shown at the end: some runs are side by side.
complain() {
  printf '%s\n' "$1"
  if [ $# = 2 ]; then sed 's/^/  /' "$2"; fi
} >>"$work/complaints"

# beside COMMAND...: while others run, up to four at a time; Open MPI takes seconds to end a job.
beside() {
  while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
  "$@" &
}

has_steps() { [ -f "$1" ] && [ "$(wc -l <"$1")" -ge 3 ]; }
ended() { ! kill -0 "$1" 2>/dev/null; }

# ---------------------------------------------------------------------------- runs

# start NAME COMMAND...: its output in NAME.json, its messages in NAME.err. Exit code 0, or it is said.
start() {
  local to=$1 code=0
  shift
  timeout $limit "$@" >"$to.json" 2>"$to.err" </dev/null || code=$?
  [ $code = 0 ] || complain "exit $code: $*" "$to.err"
}

# train NAME RANKS OPTION...: a tiny model under mpirun.
train() {
  local to=$1 ranks=$2
  shift 2
  start "$to" "$KF_MPIRUN" -n "$ranks" "$program" train "${tiny[@]}" --json "$@"
}

# refuse SENTENCE CODE OPTION...: on two ranks, one of which says it once; nothing on standard output.
n_refusals=0
refuse() {
  n_refusals=$((n_refusals + 1))
  beside refuse_into refusal-$n_refusals "$@"
}
refuse_into() {
  local to=$1 sentence=$2 code=$3 got=0
  shift 3
  timeout $limit "$KF_MPIRUN" -n 2 "$program" train "${tiny[@]}" --steps 30 --json "$@" \
    >"$to.json" 2>"$to.err" </dev/null || got=$?
  [ "$got" = "$code" ] || complain "exit $got instead of $code: $*" "$to.err"
  [ "$(grep -oF -- "$sentence" "$to.err" | wc -l)" = 1 ] || complain "not said once: $sentence" "$to.err"
  [ ! -s "$to.json" ] || complain "something on standard output: $*" "$to.json"
}

# --------------------------------------------------------- what python looks into

cat >look.py <<'PYTHON'
import html.parser, json, math, re, sys

def refuse(word): raise ValueError(word + ' is no JSON')
def read(path): return json.load(open(path), parse_constant=refuse) # one value, nothing after it

def sound(path, ranks, steps, compare):
    run = read(path)
    loss, step_ms, both = run['loss'], run['step_ms'], run.get('compare')
    assert run['ranks'] == int(ranks), 'ranks'
    assert run['steps'] == len(loss) == int(steps), '%d losses' % len(loss)
    assert all(math.isfinite(x) and x > 0 for x in loss), 'losses'
    assert 0 < step_ms['median'] <= step_ms['p95'], 'step_ms'
    assert run['tokens_per_s'] > 0, 'tokens_per_s'
    assert (both is not None) == (compare == 'yes'), 'compare'
    if both:
        before, after = both['max_over_mean_before'], both['max_over_mean_after']
        assert 1 <= before <= run['ranks'] and 1 <= after <= run['ranks'], 'max_over_mean'
        assert both['speedup'] > 0 and both['ideal'] >= 1, 'speedup'
        assert math.isclose(both['realised'], both['speedup'] / both['ideal'], rel_tol=1e-6), 'realised'
        assert 0 <= both['loss_max_rel_diff'] < 1e-5, 'loss_max_rel_diff'
        assert 0 <= both['param_rel_diff'] < 1e-3, 'param_rel_diff'

def same(tolerance, *paths):
    first = read(paths[0])['loss']
    for path in paths[1:]:
        loss = read(path)['loss']
        assert len(loss) == len(first) > 0, '%d and %d losses' % (len(first), len(loss))
        worst = max(abs(a - b) / abs(a) for a, b in zip(first, loss))
        assert worst < float(tolerance), '%s: losses differ by %g' % (path, worst)

def differ(one, other):
    assert read(one)['loss'] != read(other)['loss'], 'the same losses'

# One file that asks for no other: links lead into it, styles name nothing outside.
def page(path):
    text = open(path, encoding='utf-8').read()
    class Page(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            for key, value in attributes:
                outside = key in ('src', 'srcset', 'href', 'xlink:href', 'data', 'poster', 'action')
                assert not outside or value.startswith('#'), '<%s %s="%s">' % (tag, key, value)
    Page().feed(text)
    assert text.startswith('<!DOCTYPE html>') and text.rstrip().endswith('</html>'), 'not a whole page'
    assert '<svg' in text and 'with knapformer' in text, 'no pictures of both variants'
    assert not re.search(r'url\(\s*["\']?[^#"\')]|@import', text), 'a style that asks for a file'

def trace(path, ranks, steps):
    spans = [e for e in read(path) if e['ph'] == 'X' and e['name'] == 'compute']
    assert len(spans) == int(ranks) * int(steps), '%d spans' % len(spans)

def steps(path, first, n):
    lines = [json.loads(line, parse_constant=refuse) for line in open(path)]
    assert [line['step'] for line in lines] == list(range(int(first), int(first) + int(n))), \
        'steps %s' % [line['step'] for line in lines]

# A cost that is measured, not that of GPUs, from the first step on; and the second run begins with what the first ended with.
def kept(before, after):
    before, after = ([json.loads(line)['cost']['linear_s'] for line in open(path)] for path in (before, after))
    gpu_s = 24 * 32**2 * 2 * 4 / 300e12
    assert before[0] > 100 * gpu_s, 'planned as on GPUs: %g s a token' % before[0]
    assert after[0] == before[-1], '%s, but before %s' % (after[0], before[-1])

# The configuration counts without the balancer, too.
def refits(path, n):
    found = json.loads(open(path).readlines()[-1])['refits']
    assert found == int(n), '%d refits' % found

try:
    globals()[sys.argv[1]](*sys.argv[2:])
except Exception as error:
    sys.exit('%s: %r' % (' '.join(sys.argv[1:]), error))
PYTHON
look() {
  local wrong
  wrong=$(/usr/bin/python3 look.py "$@" 2>&1) || complain "$wrong"
}

# --------------------------------------------------------------------------- losses

for ranks in 1 2 4; do
  train home$ranks $ranks --steps 4
  look sound home$ranks.json $ranks 4 no
  train away$ranks $ranks --steps 4 --use-knapformer
  look sound away$ranks.json $ranks 4 no
  train both$ranks $ranks --steps 4 --compare --block 3
  look sound both$ranks.json $ranks 4 yes
done
look same 1e-5 home1.json {home,away,both}{1,2,4}.json
train seed 1 --steps 4 --seed 1
look differ home1.json seed.json

# Far more ranks than cores.
train few 2 --steps 20 --use-knapformer
train many 16 --steps 20 --use-knapformer
look sound many.json 16 20 no
look same 1e-4 few.json many.json

# Sequences that are split over ranks, in all of its blocks. The log says that they were.
for set in max_chunk_size=100 bag_size=2 'bag_size=[1,1,2]'; do
  train split 4 --steps 4 --use-knapformer --set "$set" --log-level debug
  grep -q 'step 3: planned .* [1-9][0-9]* split' split.err || complain "$set splits nothing"
  look same 1e-5 home1.json split.json
done

# ---------------------------------------------------------------- without a launcher

# It starts its ranks, whoever it runs as and however few cores there are.
unaided=(env -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
  -u OMPI_MCA_rmaps_base_oversubscribe "$program" train "${tiny[@]}" --json)
for ranks in 2 4; do
  start self "${unaided[@]}" --ranks $ranks --steps 4 --use-knapformer
  look sound self.json $ranks 4 no
  look same 1e-5 home1.json self.json
done

# One rank is this very process, with nobody around it.
one=("$program" train "${tiny[@]}" --json --ranks 1 --steps 1000000)
"${one[@]}" --set steps_file=alone.steps >alone.json 2>alone.err </dev/null &
alone=$!
wait_until 60 has_steps alone.steps || complain "--ranks 1 does not begin" alone.err
[ "$(readlink /proc/$alone/exe)" = "$program" ] || complain "--ranks 1 became another program"
[ -z "$(pgrep -P $alone)" ] || complain "--ranks 1 starts processes: $(pgrep -P $alone | tr '\n' ' ')"
kill -KILL $alone
wait $alone

# Time is a limit too.
start one "${one[@]}" --seconds 1 --set steps_file=one.steps
look sound one.json 1 "$(wc -l <one.steps)" no

# ---------------------------------------------------------------------------- files

files=(--trace trace --set steps_file=steps --set metrics_file=metrics --set state_file=state)
train first 2 --steps 5 --compare --report report.html "${files[@]}"
look page report.html
look trace trace 2 5
look steps steps 0 5
grep -q '^knapformer_steps_total 5$' metrics || complain "metrics of the last step are missing"
[ -s state ] || complain "there is no state"
cp steps before
train second 2 --steps 4 --use-knapformer "${files[@]}"
look steps steps 5 4
look kept before steps
grep -q '^knapformer_steps_total 9$' metrics || complain "the metrics do not go on"

train often 2 --steps 5 --set steps_file=often --set rebalance_interval=2
look refits often 2
train never 2 --steps 5 --set steps_file=never --set rebalance_interval=2 --set cost_model=static
look refits never 0

on=--use-knapformer
refuse 'steps_file: cannot write "/dev/full": No space left on device' 1 $on --set steps_file=/dev/full
refuse 'trace_file: cannot write "/dev/full": No space left on device' 1 $on --trace /dev/full
refuse 'steps_file: cannot write "nowhere/steps"' 1 $on --set steps_file=nowhere/steps
refuse 'metrics_file: cannot write "nowhere/metrics"' 1 --set metrics_file=nowhere/metrics
refuse 'state_file: cannot write "nowhere/state"' 1 $on --steps 2 --set state_file=nowhere/state
refuse '--report: cannot write "nowhere/report.html"' 1 --steps 2 --report nowhere/report.html
head -c 100 state >cut
refuse 'cut: 100 bytes of a state of' 2 $on --set state_file=cut

# ------------------------------------------------------------------------- refusals

printf 'knapformer:\n  gamma: 0.4\n  gama: 0.4\n' >wrong.yaml
printf 'knapformer: [\n' >broken.yaml
refuse 'found "nope"' 2 --model nope
refuse 'width 100 with 3 heads, expected a width that the heads divide' 2 --model d=100,layers=1,heads=3
refuse 'mix "nope"' 2 --data synthetic:nope
refuse 'mix "wan" does not tell text from visual tokens' 2 --data synthetic:wan
refuse 'wrong.yaml, line 3, column 3: unknown key "gama"' 2 --config wrong.yaml
refuse 'broken.yaml, line 2, column 1: not YAML' 2 --config broken.yaml
refuse '--set gama=1: unknown key "gama"' 2 --set gama=1
refuse 'fits nowhere: caps of up to 100 tokens a rank' 1 $on --set mem_tokens=100
refuse 'found "-", which reaches rank 0 only' 2 --config -
refuse 'found --use-knapformer and --compare' 2 --compare $on
refuse 'tokens a rank takes about' 1 --model DiT-XL --scale 1000
refuse 'expected finite numbers: try a smaller --lr than 10' 1 --lr 10

# --------------------------------------------------------------------------- faults

# process_of RANK JOB: mpirun, which has the same arguments, is another program.
process_of() {
  local pid
  for pid in $(processes "$2"); do
    [ "$(readlink "/proc/$pid/exe")" = "$program" ] &&
      tr '\0' '\n' <"/proc/$pid/environ" | grep -qE "^(OMPI_COMM_WORLD|PMIX?)_RANK=$1\$" && echo "$pid"
  done
}

# lose SIGNAL RANK OPTION...: send it to one rank of two in mid-run. The job must end, all of it.
lose() {
  local signal=$1 victim=$2 code=0 what="SIG$1 to rank $2" job="$work/$1-$2" pid mpirun
  shift 2
  "$KF_MPIRUN" -n 2 "$program" train "${tiny[@]}" --json --steps 1000000 --timeout 3 \
    --set "steps_file=$job" "$@" >"$signal-$victim.json" 2>"$signal-$victim.err" </dev/null &
  mpirun=$!
  wait_until 60 has_steps "$job" || complain "$what: the job does not begin" "$signal-$victim.err"
  pid=$(process_of "$victim" "$job")
  kill -"$signal" "$pid" || complain "$what: it is process \"$pid\""
  wait_until 30 ended $mpirun || { complain "$what: the job goes on" "$signal-$victim.err"; kill $mpirun; }
  wait $mpirun || code=$?
  [ $code != 0 ] || complain "$what: the job ended with code 0"
  wait_until 5 nothing_left "$job" || complain "$what: processes are left: $(processes "$job" | tr '\n' ' ')"
  [ "$signal" = KILL ] || grep -q "rank $victim was silent for 3 s" "$signal-$victim.err" ||
    complain "$what: nobody says that it was silent" "$signal-$victim.err"
}
wait
beside lose KILL 1 --use-knapformer
beside lose STOP 1
beside lose STOP 0 --use-knapformer
wait

[ ! -s complaints ] || { cat complaints; exit 1; }
echo "trained as expected"
