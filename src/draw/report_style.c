/* SPDX-License-Identifier: Apache-2.0 */
/*
** The style sheet of a report. Colours have names, and the dark page only gives them other values;
** all words have a contrast of 4.5 to what is behind them or more, which house/report.sh asks the
** browser. Pictures shrink with the page, and so would their words: narrow pages write them larger.
**
** What moves is the routing, and only where the reader has nothing against it: a pulse travels
** along each band, out, and after a while back. Its first moment is the still picture, in which
** bands alone show where tokens go.
*/
#include "report.h"

static const char page[] =
  ":root{color-scheme:light dark;--page:#fff;--card:#f5f7f9;--ink:#1d2530;--soft:#5b6673;"
  "--grid:#e6eaee;--axis:#8a95a3;--strong:#12804a;\n"
  "--variant-0:#8893a1;--variant-1:#1f5fb8;--plan:#7a58c1;--route:#eda02f;--compute:#3a78c9;--wait:"
  "#f4ccd4;"
  "\n--stay:#ccd4dd;--whole:#3a78c9;--split:#df8413;--planned:#3f4b5a}\n"
  "@media (prefers-color-scheme:dark){:root{--page:#14181f;--card:#1c222b;--ink:#e6eaf0;"
  "--soft:#a0abb8;--grid:#28303a;--axis:#6b7684;--strong:#4fd08a;\n"
  "--variant-0:#6d7887;--variant-1:#7db4ff;--plan:#a68be6;--route:#f5b14d;--compute:#5a9bf0;--wait:"
  "#5b2b39;"
  "\n--stay:#3a4350;--whole:#5a9bf0;--split:#f2a03c;--planned:#c5ced9}}\n"
  "*{box-sizing:border-box}\n"
  "body{margin:0;background:var(--page);color:var(--ink);"
  "font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}\n"
  "main{max-width:1008px;margin:0 auto;padding:40px 24px 32px}\n"
  "h1{font-size:1.75rem;line-height:1.2;font-weight:650;letter-spacing:-.01em;margin:0 0 .5rem;"
  "overflow-wrap:anywhere}\n"
  "h2{font-size:1.25rem;font-weight:650;margin:0 0 .35rem}\n"
  "p{margin:0 0 .75rem;max-width:52rem}\n"
  ".lead{max-width:none;font-size:1.25rem;line-height:1.45;color:var(--soft);margin-bottom:1.25rem}"
  "\n"
  ".lead b{color:var(--ink);font-weight:600}\n"
  "section{margin-top:3rem}\n"
  "section p{color:var(--soft)}section b{color:var(--ink);font-weight:600}\n"
  "dl,dt,dd,figure,ul{margin:0;padding:0}\n"
  ".tiles{display:flex;flex-wrap:wrap;gap:12px}\n"
  ".tile{flex:1 1 auto;background:var(--card);border-radius:10px;padding:12px 16px 13px}\n"
  ".tile dt,.note{font-size:.8125rem}.tile dt,.note,.facts dt{color:var(--soft)}\n"
  ".big{font-size:1.375rem;line-height:1.4;font-weight:600;white-space:nowrap}\n"
  ".note{width:0;min-width:100%}\n" /* a note breaks lines rather than to widen its tile */
  ".big sup{font-size:.7em;line-height:0}.to{color:var(--soft);font-weight:400}\n"
  ".facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(380px,1fr));gap:5px 24px;"
  "margin-top:1.25rem;font-size:.875rem}\n"
  ".facts div{display:flex;gap:12px;min-width:0}.facts dt{flex:0 0 6.5rem;overflow-wrap:anywhere}"
  ".facts dd{min-width:0;overflow-wrap:anywhere}\n"
  ".legend{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;font-size:.875rem;"
  "margin-bottom:.5rem;overflow-wrap:anywhere}\n"
  ".legend i{display:inline-block;width:13px;height:13px;border-radius:3px;margin-right:7px;"
  "vertical-align:-1.5px;background:currentColor}\n"
  ".legend .variant-0{height:6px;width:22px;vertical-align:2px}"
  ".legend .variant-1{height:2px;width:22px;border-radius:0;vertical-align:4px}\n"
  "figcaption{font-size:.875rem;color:var(--soft);margin-top:.5rem}"
  "figcaption b{margin-right:.6em;overflow-wrap:anywhere}\n"
  ".none{color:var(--soft);font-style:italic}\n"
  "footer{margin-top:3rem;font-size:.8125rem;color:var(--soft)}\n";

static const char picture[] =
  "svg{display:block;width:100%;height:auto;overflow:visible}\n"
  "text{font-size:12.5px;fill:var(--soft);font-variant-numeric:tabular-nums}\n"
  "@media (max-width:860px){text{font-size:14.5px}}\n"
  ".mid{text-anchor:middle}.end{text-anchor:end}\n"
  "path{fill:none}\n"
  ".grid{stroke:var(--grid)}.axis{stroke:var(--axis)}.step{stroke:var(--axis)}\n"
  ".block{stroke:none}"
  ".plan{fill:var(--plan);color:var(--plan)}.route{fill:var(--route);color:var(--route)}"
  ".compute{fill:var(--compute);color:var(--compute)}.wait{fill:var(--wait);color:var(--wait)}\n"
  ".saved{stroke:var(--soft);fill:var(--soft)}\n"
  ".curve{stroke-linecap:round;stroke-linejoin:round}\n"
  ".variant-0{stroke:var(--variant-0);color:var(--variant-0)}.variant-1{stroke:var(--variant-1);"
  "color:var(--variant-1)}\n"
  "path.variant-0{stroke-width:3.5}path.variant-1{stroke-width:1.7}\n"
  "#loss-chart .variant-0{stroke-width:7;stroke-opacity:.55}\n" /* where the other covers it */
  ".dots{stroke:var(--compute);stroke-width:5;stroke-linecap:round;stroke-opacity:.65}\n"
  ".bins{fill:var(--compute);fill-opacity:.75}\n"
  ".diagonal{stroke:var(--strong);stroke-width:1.5;stroke-dasharray:6 4}\n"
  ".stay{stroke:var(--stay);color:var(--stay)}.whole{stroke:var(--whole);color:var(--whole)}"
  ".split{stroke:var(--split);color:var(--split)}\n"
  ".band{stroke-opacity:.42}.band.stay{stroke-opacity:.8}.band.home{stroke-opacity:.25}\n"
  ".node{fill:var(--axis)}.work{fill:var(--variant-0);color:var(--variant-0)}"
  ".planned{fill:var(--planned);color:var(--planned)}\n";

static const char motion[] =
  ".pulse{stroke-dasharray:12 100;stroke-dashoffset:12}\n"
  "@media (prefers-reduced-motion:no-preference){\n"
  ".pulse{animation:travel 9s ease-in-out infinite}\n"
  ".stage-1{animation:first 9s linear infinite}.stage-2{animation:second 9s linear infinite}"
  ".stage-3{animation:third 9s linear infinite}\n"
  "@keyframes travel{0%,8%{stroke-dashoffset:12}40%,56%{stroke-dashoffset:-100}"
  "88%,100%{stroke-dashoffset:12}}\n"
  "@keyframes first{0%,40%,95%,100%{opacity:1}43%,92%{opacity:.35}}\n"
  "@keyframes second{0%,5%,40%,56%,95%,100%{opacity:1}8%,37%,59%,92%{opacity:.35}}\n"
  "@keyframes third{0%,5%,56%,100%{opacity:1}8%,53%{opacity:.35}}\n"
  "}\n"
  "@media print{.pulse{display:none}main{padding:0}section{break-inside:avoid}}\n";

void kfi_put_report_style(kfi_writer *w) {
  kfi_put(w, "<style>\n%s%s%s</style>\n", page, picture, motion);
}
