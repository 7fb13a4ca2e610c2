#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Reports open in Chromium, light and dark, narrow and wide: everything is drawn, nothing overlaps or
# leaves its picture, all words can be read, and the page asks for nothing and complains of nothing.
# $KF_BUILD/tests/report_page writes the pages; a script that measures them is put into copies.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { failed=1; printf '%s\n' "$*"; }

# open_page FILE OPTION..: the page as the browser understood it; what its console says in $work/console
open_page() {
  local file=$1
  shift
  timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
    --user-data-dir="$work/profile" --enable-logging=stderr "$@" --dump-dom "file://$file" \
    2>"$work/log" || { cat "$work/log"; echo "chromium could not open $file"; exit 1; }
  grep ':CONSOLE:' "$work/log" >"$work/console" || true
}

cat >"$work/probe" <<'PROBE'
<script>
const wrong = [], pictures = [...document.querySelectorAll('svg')];
const all = (kind, within = document) => [...within.querySelectorAll(kind)];
const inside = (a, b, slack) => a.left >= b.left - slack && a.right <= b.right + slack &&
  a.top >= b.top - slack && a.bottom <= b.bottom + slack;
const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3; // lines of a font have some air
const channels = colour => colour.match(/[\d.]+/g).map(Number);
const light = colour => channels(colour).slice(0, 3).map(c => c / 255)
  .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
const behind = e => { // the first background that is not transparent
  for (; e; e = e.parentElement)
    if (channels(getComputedStyle(e).backgroundColor)[3] !== 0) return getComputedStyle(e).backgroundColor;
};
for (const svg of pictures) {
  const box = svg.getBoundingClientRect(), words = all('text', svg);
  if (box.width < 400 || box.height < 40) wrong.push(svg.id + ' is ' + box.width + ' x ' + box.height);
  if (!svg.querySelector('title') || !svg.querySelector('desc')) wrong.push(svg.id + ' has no title or desc');
  for (const e of all('text,path', svg))
    if (!inside(e.getBoundingClientRect(), box, 3))
      wrong.push(svg.id + ': ' + e.getAttribute('class') + ' ' + e.textContent + ' leaves the picture');
  for (const [i, a] of words.entries())
    for (const b of words.slice(i + 1))
      if (overlap(a.getBoundingClientRect(), b.getBoundingClientRect()))
        wrong.push(svg.id + ': "' + a.textContent + '" and "' + b.textContent + '" overlap');
}
for (const e of all('h1,h2,p,b,dt,dd,li,figcaption,footer,text')) {
  const style = getComputedStyle(e), a = light(e.tagName === 'text' ? style.fill : style.color), b = light(behind(e));
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) wrong.push(e.tagName + ' "' + e.textContent + '" has a contrast of ' + contrast);
}
if (document.documentElement.scrollWidth > innerWidth) wrong.push('wider than the window');
const asked = performance.getEntriesByType('resource').map(e => e.name);
if (asked.length) wrong.push('asks for ' + asked);
const count = kind => all(kind).filter(e => { const b = e.getBBox(); return b.width + b.height > 1; }).length;
const dark = light(getComputedStyle(document.body).backgroundColor) < 0.5;
document.body.dataset.seen = [innerWidth, dark ? 'dark' : 'light', 'pictures', pictures.length,
  'blocks', count('.block'), 'curves', count('.curve'), 'dots', count('.dots'), 'bins', count('.bins'),
  'bands', Math.min(count('.band'), 9), 'pulses', Math.min(count('.pulse'), 9),
  'moving', Math.min(document.getAnimations().length, 9)].join(' ');
document.body.dataset.wrong = wrong.join('; ');
</script>
PROBE

value() { grep -o "data-$1=\"[^\"]*\"" | head -1 | cut -d'"' -f2; }

# look NAME WIDTH SCHEME EXPECTED [OPTION]
look() {
  local dom seen wrong options=(--window-size="$2,900")
  [ "$3" = light ] || options+=(--blink-settings=preferredColorScheme=0)
  [ -z "${5:-}" ] || options+=("$5")
  dom=$(open_page "$work/$1.probe.html" "${options[@]}")
  seen=$(value seen <<<"$dom")
  wrong=$(value wrong <<<"$dom")
  [ "$seen" = "$2 $3 $4" ] || complain "$1, $2 $3: sees $seen, expected $2 $3 $4"
  [ -z "$wrong" ] || complain "$1, $2 $3: $wrong"
  [ ! -s "$work/console" ] || complain "$1, $2 $3 says: $(cat "$work/console")"
}

for name in small joint pair many single empty tiny huge; do
  page="$work/$name.html"
  "$KF_BUILD/tests/report_page" "$name" >"$page"
  if grep -nEi 'https?:|<script|<link|<img|@import|url\(|src=|href=' "$page"; then
    complain "$name asks for something from outside"
  fi
  dom=$(open_page "$page")
  [ ! -s "$work/console" ] || complain "$name says: $(cat "$work/console")"
  for id in timeline imbalance loss fit routing; do
    grep -q "<section id=\"$id\">" <<<"$dom" || complain "$name has no section $id"
  done
  { sed -e '/Content-Security-Policy/d' -e '/<\/body>/,$d' "$page"
    cat "$work/probe"
    echo '</body></html>'; } >"$work/$name.probe.html"
done

drawn="pictures 6 blocks 6 curves 4 dots 1 bins 1"
for width in 700 1000 1400; do look joint $width light "$drawn bands 9 pulses 9 moving 9"; done
look joint 1000 dark "$drawn bands 9 pulses 9 moving 9"
look joint 1000 light "$drawn bands 9 pulses 9 moving 0" --force-prefers-reduced-motion
look small 700 light "$drawn bands 9 pulses 6 moving 9"
look small 1000 dark "$drawn bands 9 pulses 6 moving 9"
look many 1400 dark "$drawn bands 9 pulses 9 moving 9"
look pair 700 light "$drawn bands 5 pulses 3 moving 6"
look tiny 700 light "$drawn bands 9 pulses 9 moving 9"
look huge 1000 dark "$drawn bands 9 pulses 9 moving 9"
look single 1000 light "pictures 5 blocks 1 curves 0 dots 0 bins 1 bands 3 pulses 0 moving 0"
look empty 700 dark "pictures 0 blocks 0 curves 0 dots 0 bins 0 bands 0 pulses 0 moving 0"

# A script that got into a page does not run, and we would see that it tried.
sed 's|</body>|<script>document.body.dataset.seen = 1</script></body>|' "$work/empty.html" >"$work/forbidden.html"
dom=$(open_page "$work/forbidden.html")
[ -z "$(value seen <<<"$dom" || true)" ] || complain "a script ran"
grep -q 'Content Security Policy' "$work/console" || complain "the browser did not say that it refused a script"
exit $failed
