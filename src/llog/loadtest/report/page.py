"""HTML shared by reports and comparisons: the page's frame and style, tables, figures. No script, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from llog.loadtest.report.charts import STYLE, render_chart
from llog.loadtest.report.charts.scales import number
from llog.loadtest.report.charts.svg import Markup, element, join
from llog.loadtest.report.model import Section, Table

WIDE_COLUMNS: Final = 4
"""Tables with as many columns take the whole width."""
LONG_TABLE: Final = 14
"""Tables with more rows can be folded."""

# Nothing of the run can load or run anything, even if it slipped through as markup.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

PAGE_STYLE: Final = (
    STYLE
    + """
:root{color-scheme:light dark;--page:#f3f5f8;--good:#0b6b3a;--goodback:#e3f4ea;--bad:#b3122a;--badback:#fdeaec;
--warn:#7a4b00;--warnback:#fdf3dc;--accent:#1a56c4;--band:#0f1d33;--bandink:#f2f5fa;--bandquiet:#b6c4d9}
@media screen and (prefers-color-scheme:dark){:root{--page:#0e1116;--good:#5fd896;--goodback:#12301f;--bad:#ff8b98;
--badback:#3a161c;--warn:#f0c060;--warnback:#33270d;--accent:#7fb0ff;--band:#131b29}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI",Roboto,sans-serif}
a{color:var(--accent)}
header.band{background:var(--band);color:var(--bandink)}
.inner{max-width:1280px;margin:0 auto;padding:0 1.5rem}
header .inner{padding-top:1.6rem;padding-bottom:1.4rem}
header .kind{margin:0;color:var(--bandquiet);font-size:.8rem;letter-spacing:.08em;text-transform:uppercase}
header h1{margin:.1rem 0 .3rem;font-size:1.9rem;line-height:1.2;overflow-wrap:anywhere}
header p{margin:.2rem 0;color:var(--bandquiet);overflow-wrap:anywhere}
header p.about{color:var(--bandink);max-width:70ch}
nav{position:sticky;top:0;z-index:2;background:var(--card);border-bottom:1px solid var(--grid)}
nav .inner{display:flex;gap:1.2rem;overflow-x:auto;padding-top:.55rem;padding-bottom:.55rem}
nav a{white-space:nowrap;text-decoration:none;font-size:.9rem}
nav a:hover,nav a:focus{text-decoration:underline}
main.inner{padding-top:1.2rem;padding-bottom:3rem}
section{margin:2.2rem 0 0;scroll-margin-top:3.2rem}
main>section:first-child{margin-top:.4rem}
h2{font-size:1.3rem;margin:0 0 .6rem}
section>p{margin:-.3rem 0 .8rem;color:var(--quiet);max-width:80ch}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}
.card{background:var(--card);border:1px solid var(--grid);border-radius:12px;padding:1rem 1.1rem;min-width:0}
.card+.card{margin:0}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem;margin-top:1rem;align-items:start}
.tables>.span{grid-column:1/-1}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(11.4rem,1fr));gap:.8rem;margin:0}
.tile{background:var(--card);border:1px solid var(--grid);border-radius:12px;padding:.75rem .9rem;min-width:0}
.tile dt{color:var(--quiet);font-size:.82rem}
.tile dd{margin:0}
.tile .figure{font-size:1.55rem;font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums}
.tile .unit{font-size:.85rem;font-weight:500;color:var(--quiet);margin-left:.25rem}
.tile .note{color:var(--quiet);font-size:.78rem}
.notice{border-radius:10px;padding:.7rem 1rem;margin:0 0 .8rem;border:1px solid currentColor}
.notice ul{margin:.2rem 0 0;padding-left:1.2rem}
.notice p{margin:0}
.notice.plain{background:var(--card);border-color:var(--grid)}
.notice.good,.pill.good{color:var(--good);background:var(--goodback)}
.notice.bad,.pill.bad{color:var(--bad);background:var(--badback)}
.notice.warn,.pill.warn{color:var(--warn);background:var(--warnback)}
.pill{display:inline-block;border-radius:99px;padding:.05rem .6rem;font-size:.82rem;font-weight:650;white-space:nowrap}
.block h3{margin:0;font-size:1rem}
.block p{margin:.15rem 0 .5rem;color:var(--quiet);font-size:.85rem}
.block summary{cursor:pointer;color:var(--quiet);font-size:.85rem}
.wide{overflow-x:auto}
.wide table{border-collapse:collapse;width:100%;font-size:.87rem;font-variant-numeric:tabular-nums}
.wide th,.wide td{padding:.3rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid)}
.wide td.n,.wide th.n{text-align:right}
.wide th:first-child,.wide td:first-child{padding-left:0}
.wide thead th{color:var(--quiet);font-weight:600;white-space:nowrap}
.wide td.t{overflow-wrap:break-word;min-width:6rem}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
footer{color:var(--quiet);font-size:.82rem;margin-top:2.5rem}
@media screen and (max-width:620px){.inner{padding-left:1rem;padding-right:1rem}.card{padding:.8rem}
header h1{font-size:1.5rem}.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}.tile .figure{font-size:1.3rem}
.wide td.t{min-width:3.2rem}.wide th,.wide td{padding:.3rem .35rem}}
@media print{:root{--page:#fff}body{font-size:10pt}nav,.chart details{display:none}
header.band{background:none;color:var(--ink)}header p,header p.about,header .kind{color:var(--quiet)}
.cards{grid-template-columns:1fr 1fr}.card,.tile{break-inside:avoid}h2{break-after:avoid}
.tiles{grid-template-columns:repeat(4,1fr)}.inner{max-width:none;padding:0}.chart .hover{display:none}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
)


def page(title: str, header: Iterable[str], sections: Sequence[tuple[str, str, str]]) -> str:
    """A document. A section is its id, its name in the navigation, and its content."""
    links = [element("a", name, href=f"#{identifier}") for identifier, name, _ in sections]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Markup(PAGE_STYLE)),
    )
    body = element(
        "body",
        element("header", element("div", *header, class_="inner"), class_="band"),
        element("nav", element("div", *links, class_="inner"), aria_label="Sections"),
        element("main", *(content for _, _, content in sections), _footer(), class_="inner"),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _footer() -> Markup:
    text = (
        "MB and GB are 10⁶ and 10⁹ bytes of record values. Latency counts from the time a request was due. All plotted"
    )
    return element("footer", f"{text} figures are in the JSON file beside this page.")


def section(identifier: str, title: str, *content: str, about: str = "") -> tuple[str, str, str]:
    intro = element("p", about) if about else ""
    return identifier, title, element("section", element("h2", title), intro, *content, id=identifier)


def plain_section(part: Section) -> tuple[str, str, str]:
    charts = [element("div", render_chart(chart), class_="card") for chart in part.charts]
    tables = [table_card(each) for each in part.tables]
    cards = element("div", *charts, class_="cards") if charts else ""
    below = element("div", *tables, class_="tables") if tables else ""
    return section(part.id, part.title, cards, below, about=part.about)


def table_card(table: Table, cells: Sequence[Sequence[str]] | None = None, *, folded: bool = True) -> Markup:
    """`cells` are the contents where they are more than text. Long tables begin folded."""
    about = element("p", table.about) if table.about else ""
    span = " span" if len(table.columns) >= WIDE_COLUMNS else ""
    if not table.rows:
        content: str = element("p", "None.")
    else:
        content = _grid(table, cells)
        if folded and len(table.rows) > LONG_TABLE:
            content = element("details", element("summary", f"{len(table.rows)} rows"), content)
    return element(
        "div", element("h3", table.title), about, content, class_=f"card block{span}", id=f"table-{table.id}"
    )


def _grid(table: Table, cells: Sequence[Sequence[str]] | None) -> Markup:
    numeric = [all(isinstance(row[n], float | int | None) for row in table.rows) for n in range(len(table.columns))]
    head = [
        element("th", name, scope="col", class_="n" if numeric[n] else None) for n, name in enumerate(table.columns)
    ]
    shown = cells if cells is not None else [[cell(value) for value in row] for row in table.rows]
    body = [
        element("tr", *(element("td", value, class_="n" if numeric[n] else "t") for n, value in enumerate(row)))
        for row in shown
    ]
    named = any(table.columns)
    inner = element("table", element("thead", element("tr", *head)) if named else "", element("tbody", *body))
    return element("div", inner, class_="wide", tabindex=0, role="region", aria_label=table.title)


def cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else number(value)


def pill(kind: str, label: str) -> Markup:
    return element("span", label, class_=f"pill {kind}")


def notice(kind: str, title: str, items: Sequence[str] = ()) -> Markup:
    listed = element("ul", *(element("li", item) for item in items)) if items else ""
    return element("div", element("p", element("strong", title)), listed, class_=f"notice {kind}")


def tile(label: str, value: float | None, unit: str, note: str = "") -> Markup:
    figure = element("dd", element("span", cell(value), class_="figure"), element("span", unit, class_="unit"))
    below = element("dd", note, class_="note") if note else ""
    return element("div", element("dt", label), figure, below, class_="tile")


def header_of(kind: str, title: str, about: str, *lines: str) -> list[Markup]:
    shown = [element("p", kind, class_="kind"), element("h1", title)]
    if about:
        shown.append(element("p", about, class_="about"))
    return [*shown, *(element("p", join(line)) for line in lines if line)]
